-- uses: base events ownership stop inbox owner questions
-- ARGV[2]: the question's body.
local r = load(K.task, A.task)
if not holds(r, A.token) then return { answer('LOST') } end
if r.last_op == A.op then return { r.last_answer } end
if stop_of(r, ANCESTORS) then return { ack(r) } end
local q = question(A.qid)
if q then
  if q.deadline <= now then settle_question(A.qid, TIMEOUT) end
  return { answer('STORED', { deadline = q.deadline }), answer_to(A.qid) }
end

local head = r.id .. ' ' .. int(r.run) .. ' ' .. int(A.deadline) .. ' ' .. int(now) .. ' '
redis.call('HSET', K.ask, A.qid, head .. ARGV[2])
local data = '{"qid":' .. cjson.encode(A.qid) .. ',"deadline_ms":' .. int(A.deadline) .. '}'
event(r, 'system', 0, '{"subtype":"question","data":' .. data .. '}')
return { keep(r, ack(r)) }
