-- Opening a run: the first by create, the next by a message to an ended task. `p`: the parent's record or nil.
local function chain_of(p)
  if p == nil then return '' end
  local chain = { { p.id, p.run } }
  local above = links(p)[1]
  if above then chain[2] = above end
  return cjson.encode(chain)
end

local function open_run(r, p, run)
  put(r, {
    run = run, state = 'created', chain = chain_of(p), attempts = 0, attempts_total = 0, tries = 0, park = '', park_at = 0,
    why = '', wake_at = now, wake_n = 0, sent = 0, deadline = r.limit_ms > 0 and now + r.limit_ms or 0, usage = '',
    queued_at = 0, started_at = 0, ended_at = 0, token_at = 0, tool_at = 0, heartbeat_at = 0, claimed_at = 0,
    silent = 0,
  })
  redis.call('SADD', K.open, r.id)
  if p then put(p, { open_children = p.open_children + 1 }) end
  redis.call('DEL', K.act)
  event(r, 'state', 0, '{"state":"created"}')
end
