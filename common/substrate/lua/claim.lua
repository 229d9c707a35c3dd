-- uses: base events ownership stop inbox settle
local function granted(r)
  local stop = stop_of(r, ANCESTORS)
  return {
    answer('OK', {
      token = r.owner, run = r.run, tlen = r.tlen, unread = unread(K.inbox), open_children = r.open_children,
      asked = r.asked == '1', stop = stop or nil,
    }),
    redis.call('HGET', r.key, 'draft') or '',
  }
end

local function parked(r)
  if r.park == '' then return false end
  return r.park_at == 0 or r.park_at > now
end

local r = load(K.task, A.task)
if r == nil then return { answer('NOREC') } end
if TERMINAL[r.state] then return { answer('DONE') } end
if A.run and A.run ~= r.run then return { answer('STALE') } end
if string.match(r.owner, '/(.*)$') == A.nonce then
  put(r, { lease_until = now + A.ttl })
  return granted(r)
end
if not free(r) then return { answer('BUSY') } end
local stop = stop_of(r, ANCESTORS)
if stop then return { answer('STOPPED', { parent = settle_stopped(r, stop) }) } end
if parked(r) then return { answer('PARKED') } end
if r.attempts > A.max_attempts or r.attempts_total > A.max_attempts_total then
  return { answer('POISON', { parent = settle(r, failed(r, 'poison')), orphans = r.open_children }) }
end

if r.owner ~= '' then put(r, { attempts = r.attempts + 1, attempts_total = r.attempts_total + 1 }) end
inform_back(r, r.lost_fence)
if r.state ~= 'queued' then move(r, 'queued') end
put(r, {
  fence = r.fence + 1, owner = int(r.fence + 1) .. '/' .. A.nonce, proc = A.proc, lease_until = now + A.ttl,
  park = '', park_at = 0, why = '', wake_n = 0, heartbeat_at = now, claimed_at = now, silent = 0,
})
if r.started_at == 0 then put(r, { started_at = now }) end
move(r, 'running')
return granted(r)
