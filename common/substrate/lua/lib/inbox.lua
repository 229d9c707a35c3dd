-- Messages and notifications are "unread" and wake; information entries (l:, b:) lie in the same list and do neither.
local function wakes(id) return starts_with(id, 'n:') or starts_with(id, 'm:') end

local function unread(inbox)
  local count = 0
  for _, id in ipairs(redis.call('LRANGE', inbox, 0, -1)) do
    if wakes(id) then count = count + 1 end
  end
  return count
end

local function deliver(inbox, id, body)
  redis.call('HSET', K.ent, id, body)
  redis.call('RPUSH', inbox, id)
end

-- An entry that wakes clears park = inbox, an answer the park for it; the wake-up that its writer sends gets a number
-- of its own.
local function unpark(r, park)
  if TERMINAL[r.state] or r.park ~= park then return false end
  put(r, { park = '', park_at = 0, why = '', sent = r.sent + 1 })
  return true
end

-- An information entry of the parent about the lease of `r`.
local function inform(r, letter, fence)
  if r.parent == '' then return end
  local id = letter .. ':' .. r.id .. ':' .. int(fence)
  deliver(K.parent_inbox, id, '{"task":"' .. r.id .. '","run":' .. int(r.run) .. '}')
end

local function inform_back(r, fence)
  if r.lost_fence ~= fence or r.back_fence >= fence then return end
  put(r, { back_fence = fence })
  tell(r, 'alive')
  inform(r, 'b', fence)
end

-- What the caller needs to send hints to the owner of a record, or the wake-up of a task that was parked.
local function target(r, woken)
  return { task = r.id, proc = r.proc, woken = woken, run = r.run, attempt = r.sent }
end
