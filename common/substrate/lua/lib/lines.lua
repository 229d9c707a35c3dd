-- Lines arrive as JSON objects; number, time and token are put in front without reading them.
local function append_lines(r, first)
  for i = first, #ARGV do
    local head = '{"seq":' .. int(r.tlen) .. ',"time":' .. int(now) .. ',"token":"' .. A.token .. '",'
    redis.call('RPUSH', K.transcript, head .. string.sub(ARGV[i], 2))
    event(r, 'line', r.tlen, '{}')
    r.tlen = r.tlen + 1
  end
  local changes = { tlen = r.tlen }
  if A.answered then changes.draft = '' end
  if A.usage then changes.usage = A.usage end
  put(r, changes)
end
