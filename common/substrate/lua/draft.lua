-- uses: base events ownership stop inbox owner
-- ARGV[2]: the draft.
local r = load(K.task, A.task)
if not holds(r, A.token) then return answer('LOST') end
if r.last_op == A.op then return r.last_answer end
if A.at ~= r.tlen then return answer('CONFLICT') end
if stop_of(r, ANCESTORS) then return ack(r) end

put(r, { draft = ARGV[2] })
for _, id in ipairs(A.started) do redis.call('HSETNX', K.tools, id, 'started') end
return keep(r, ack(r))
