-- uses: base events ownership stop inbox owner
-- ARGV[2]: the result.
local r = load(K.task, A.task)
if not holds(r, A.token) then return answer('LOST') end
if r.last_op == A.op then return r.last_answer end
if A.at ~= r.tlen then return answer('CONFLICT') end
if stop_of(r, ANCESTORS) then return ack(r) end

redis.call('HSET', K.tools, A.tool, 'done ' .. ARGV[2])
return keep(r, ack(r))
