-- uses: base events ownership stop inbox once run
-- ARGV[2]: the entry's body.
local function closed(r, p)
  if r.kind == 'd' then return 'a dream takes no messages' end
  if r.kind == 'sh' and TERMINAL[r.state] then return 'the command has ended' end
  if p and TERMINAL[p.state] then return 'its parent has ended' end
  if p and stop_of(p, { K.grandparent }) then return 'stopping' end
  if not TERMINAL[r.state] and stop_of(r, ANCESTORS) then return 'stopping' end
  return nil
end

local stored = known()
if stored then return stored end
if sender_lost() then return answer('LOST') end
local r = load(K.task, A.task)
if r == nil then return answer('REFUSED', { reason = 'unknown task' }) end
local p = r.parent ~= '' and load(K.parent, r.parent) or nil
local why = closed(r, p)
if why then return answer('REFUSED', { reason = why }) end

local reopened = TERMINAL[r.state] == true
if reopened and p == nil and (A.version == nil or r.seal >= A.version) then return answer('RELIST') end
if redis.call('HEXISTS', K.ent, A.entry) == 1 then
  return remember(answer('QUEUED', { run = r.run, target = target(r, false) }))
end
if reopened then open_run(r, p, r.run + 1) end
deliver(K.inbox, A.entry, ARGV[2])
local woken = unpark(r, 'inbox')
return remember(answer(reopened and 'REOPENED' or 'QUEUED', { run = r.run, target = target(r, woken or reopened) }))
