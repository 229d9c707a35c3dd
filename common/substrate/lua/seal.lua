-- uses: base
local r = load(K.task, A.task)
if r == nil then return answer('NOREC') end
if not TERMINAL[r.state] or redis.call('SCARD', K.open) > 0 then return answer('NO') end
if r.seal < A.version then put(r, { seal = A.version }) end
return answer('OK')
