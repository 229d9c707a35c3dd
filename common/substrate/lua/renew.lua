-- uses: base events ownership stop inbox presence owner
local r = load(K.task, A.task)
if not holds(r, A.token) then return answer('LOST') end
put(r, { lease_until = now + A.ttl, heartbeat_at = now })
resume(r)
inform_back(r, r.fence)
notice_silence(r)
return ack(r)
