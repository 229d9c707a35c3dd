-- uses: base events ownership stop inbox settle
local r = load(K.task, A.task)
if r == nil or TERMINAL[r.state] or not free(r) then return answer('NO') end
local stop = stop_of(r, ANCESTORS)
if not stop then return answer('NO') end
return answer('STOPPED', { parent = settle_stopped(r, stop) })
