-- The common tail of finish, stop and poison (PROTOCOL 3).
-- outcome: state, subtype, reason, partial, and rest = the JSON object of all other fields, kept unread.
local function return_messages(r, reason)
  local ids = {}
  for _, id in ipairs(redis.call('LRANGE', K.inbox, 0, -1)) do
    if starts_with(id, 'm:') then
      redis.call('LREM', K.inbox, 1, id)
      redis.call('HSETNX', K.fate, id, 'undeliverable ' .. reason)
      ids[#ids + 1] = id
    end
  end
  return ids
end

local function list_json(ids)
  if #ids == 0 then return '[]' end
  return cjson.encode(ids)
end

local function outcome_json(r, outcome, undeliverable)
  local duration = r.started_at > 0 and now - r.started_at or 0
  return '{"duration_ms":' .. int(duration) .. ',"state":"' .. outcome.state .. '","subtype":"' .. outcome.subtype .. '","reason":'
    .. cjson.encode(outcome.reason) .. ',"partial":' .. tostring(outcome.partial) .. ',"undeliverable":'
    .. undeliverable .. ',' .. string.sub(outcome.rest, 2)
end

local function undelivered(r, outcome)
  if outcome.state == 'completed' and r.kind ~= 'sh' then return '[]' end
  local reason = outcome.reason ~= '' and outcome.reason or outcome.state
  if outcome.state == 'completed' then reason = 'command ended' end
  return list_json(return_messages(r, reason))
end

local function notify_parent(r, undeliverable)
  local p = load(K.parent, r.parent)
  put(p, { open_children = p.open_children - 1 })
  deliver(K.parent_inbox, 'n:' .. r.id .. ':' .. int(r.run),
    '{"task":"' .. r.id .. '","run":' .. int(r.run) .. ',"undeliverable":' .. undeliverable .. '}')
  return target(p, unpark(p, 'inbox'))
end

-- Returns the parent's target for hints, or nil for a session.
local function settle(r, outcome)
  local undeliverable = undelivered(r, outcome)
  redis.call('HSETNX', K.runs, int(r.run), outcome_json(r, outcome, undeliverable))
  if outcome.state ~= 'completed' and r.open_children > 0 then accept_stop(r, 'end', outcome.reason) end
  move(r, outcome.state)
  event(r, 'result', 0, '{}')
  put(r, { owner = '', proc = '', lease_until = 0, park = '', park_at = 0, why = '', ended_at = now })
  redis.call('SREM', K.open, r.id)
  if r.parent == '' then return nil end
  return notify_parent(r, undeliverable)
end

-- The rest of an outcome that no owner wrote: what the record knows.
local function rest_of(r)
  local usage = r.usage ~= '' and r.usage or '{}'
  return '{"usage":' .. usage .. '}'
end

local function failed(r, reason)
  return { state = 'failed', subtype = 'error_during_execution', reason = reason, partial = false, rest = rest_of(r) }
end

-- Failed only by the run's own limit; whatever came through the chain stops it.
local function stopped_as(stop) return stop.own and stop.kind == 'limit' and 'failed' or 'stopped' end

-- An owner whose lease ran out was not seen to end its processes: the stop is told as not confirmed.
local function settle_stopped(r, stop)
  if r.owner ~= '' then put(r, { unseen = r.run }) end
  return settle(r, {
    state = stopped_as(stop), subtype = 'error_during_execution', reason = stop.reason, partial = false,
    rest = rest_of(r),
  })
end
