-- uses: base events ownership stop inbox owner
local r = load(K.task, A.task)
if not holds(r, A.token) then return answer('LOST') end
if stop_of(r, ANCESTORS) then return ack(r) end
if A.park == 'inbox' and unread(K.inbox) > 0 then return answer('INBOX', { unread = unread(K.inbox) }) end
-- The park's name is the answer's field.
if starts_with(A.park, 'answer:') and redis.call('HEXISTS', K.ask, A.park) == 1 then return answer('ANSWERED') end

put(r, {
  owner = '', proc = '', lease_until = 0, park = A.park, park_at = A.now and now or A.park_ms and now + A.park_ms or A.park_at, why = A.why,
})
if A.tries then put(r, { tries = A.tries }) end
move(r, 'queued')
-- A release is no park: the next owner may come at once.
local asks = A.why == 'human' or starts_with(A.park, 'answer:')
if not A.now then tell(r, asks and 'waiting_human' or 'parked') end
return answer('OK')
