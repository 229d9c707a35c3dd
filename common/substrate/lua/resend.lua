-- uses: base events ownership stop inbox settle
local FIRST_WAIT_MS = 2000
local LONGEST_WAIT_MS = 30000

local function waited(r)
  if now - r.wake_at > math.min(FIRST_WAIT_MS * 2 ^ r.wake_n, LONGEST_WAIT_MS) then return true end
  -- A park that fell due, or a lease that ended, since the last wake-up counts at once, and once.
  return r.wake_at < (r.owner ~= '' and r.lease_until or r.park_at)
end

local function inform_lost(r)
  if r.owner == '' or r.lost_fence >= r.fence then return end
  put(r, { lost_fence = r.fence })
  tell(r, 'lost')
  inform(r, 'l', r.fence)
end

local r = load(K.task, A.task)
if r == nil or TERMINAL[r.state] or not free(r) then return answer('NO') end
local stop = stop_of(r, ANCESTORS)
if stop then return answer('NO', { parent = settle_stopped(r, stop) }) end
if r.park ~= '' and (r.park_at == 0 or r.park_at > now) then return answer('NO') end
if not waited(r) then return answer('NO') end

inform_lost(r)
put(r, { wake_at = now, wake_n = r.wake_n + 1, sent = r.sent + 1 })
if r.state ~= 'queued' then move(r, 'queued') end
return answer('SEND', { run = r.run, attempt = r.sent })
