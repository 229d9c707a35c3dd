-- uses: base events ownership stop inbox once questions
-- ARGV[2]: the answer's body.
local stored = known()
if stored then return { stored, answer_to(A.qid) } end
local r = load(K.task, A.task)
local q = r and question(A.qid)
if not q then return { answer('UNKNOWN') } end
if answer_to(A.qid) then return { answer('FIRST'), answer_to(A.qid) } end
if q.run ~= r.run or TERMINAL[r.state] or stop_of(r, ANCESTORS) then return { answer('ENDED') } end

local late = q.deadline <= now
settle_question(A.qid, late and TIMEOUT or ARGV[2])
local owner = target(r, unpark(r, 'answer:' .. A.qid))
if late then return { answer('FIRST', { target = owner }), TIMEOUT } end
return { remember(answer('OK', { target = owner })), ARGV[2] }
