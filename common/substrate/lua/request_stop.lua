-- uses: base events ownership stop inbox settle once
local stored = known()
if stored then return stored end
if sender_lost() then return answer('LOST') end
local r = load(K.task, A.task)
if r == nil then return answer('UNKNOWN') end
-- Kept too: the same request must never hit a run that is opened later.
if TERMINAL[r.state] or (A.run and A.run ~= r.run) then
  return remember(answer('FINISHED', { state = r.state, run = r.run }))
end

accept_stop(r, A.kind, A.reason)
if not free(r) then return remember(answer('REQUESTED', { run = r.run })) end
local parent = settle_stopped(r, stop_of(r, ANCESTORS))
return remember(answer('STOPPED', { state = r.state, run = r.run, parent = parent }))
