-- uses: base events ownership stop inbox presence owner lines
-- ARGV[2..]: the lines.
local function is_head(ids)
  if #ids == 0 then return true end
  local head = redis.call('LRANGE', K.inbox, 0, #ids - 1)
  for i, id in ipairs(ids) do
    if head[i] ~= id then return false end
  end
  return true
end

local function consume(r)
  local heard = false
  for _, id in ipairs(A.consume) do
    redis.call('LPOP', K.inbox)
    redis.call('HSETNX', K.fate, id, 'consumed ' .. r.id .. ' ' .. int(A.at))
    heard = heard or starts_with(id, 'm:')
  end
  if heard then put(r, { asked = '' }) end
end

local r = load(K.task, A.task)
if not holds(r, A.token) then return answer('LOST') end
if r.last_op == A.op then return r.last_answer end
if A.at ~= r.tlen or not is_head(A.consume) then return answer('CONFLICT') end

consume(r)
resume(r)
append_lines(r, 2)
if A.progress then progressed(r, { attempts = 0, tries = 0, [A.answered and 'token_at' or 'tool_at'] = now }) end
if A.asked then put(r, { asked = '1' }) end
return keep(r, ack(r))
