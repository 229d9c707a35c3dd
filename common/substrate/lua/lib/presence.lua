-- A silence is told once, by the renewal that notices it, and its end by the next progress.
local function progressed(r, changes)
  changes.silent = 0
  if r.silent == 1 then tell(r, 'alive') end
  put(r, changes)
end

-- A run that waits for its children is not silent: they are heard of instead.
local function notice_silence(r)
  if r.silent == 1 or r.open_children > 0 then return end
  local newest = 0
  for _, at in ipairs(redis.call('HMGET', r.key, 'token_at', 'tool_at', 'claimed_at')) do
    newest = math.max(newest, tonumber(at or '0'))
  end
  if newest == 0 or now - newest < A.silent_ms then return end
  put(r, { silent = 1 })
  tell(r, 'silent')
end
