-- uses: base events ownership stop inbox settle lines
-- ARGV[2]: the rest of the outcome; ARGV[3..]: the last lines.
local function refusal(r)
  if r.kind ~= 'sh' and unread(K.inbox) > 0 then return 'INBOX' end
  if r.open_children > 0 then return 'CHILDREN' end
  return nil
end

local r = load(K.task, A.task)
if not holds(r, A.token) then return answer(r and r.fin_by == A.token and 'ALREADY' or 'LOST') end
if A.at ~= r.tlen then return answer('CONFLICT') end

local outcome = { state = A.state, subtype = A.subtype, reason = A.reason, partial = A.partial, rest = ARGV[2] }
local stop = stop_of(r, ANCESTORS)
if stop then
  outcome.state, outcome.subtype, outcome.reason = stopped_as(stop), 'error_during_execution', stop.reason
  outcome.partial = A.has_text
elseif outcome.state == 'completed' then
  local why = refusal(r)
  if why then return answer(why, { unread = unread(K.inbox), open_children = r.open_children }) end
end

resume(r)
append_lines(r, 3)
put(r, { fin_by = A.token })
return answer(stop and 'STOPPED' or 'OK', {
  state = outcome.state, parent = settle(r, outcome), orphans = r.open_children, tlen = r.tlen,
})
