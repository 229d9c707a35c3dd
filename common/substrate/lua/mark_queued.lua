-- uses: base events
local r = load(K.task, A.task)
if r and r.state == 'created' and r.run == A.run then
  move(r, 'queued')
  put(r, { wake_at = now, queued_at = now })
end
return answer('OK')
