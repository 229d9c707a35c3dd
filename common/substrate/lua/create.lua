-- uses: base events ownership stop run
-- ARGV[2..]: the record's fixed fields, name and value in turn.
local p = nil
if A.parent ~= '' then
  p = load(K.parent, A.parent)
  if not holds(p, A.parent_token) then return answer('LOST') end
end
local digest = redis.call('HGET', K.task, 'digest')
if digest then return answer(digest == A.digest and 'EXISTS' or 'MISMATCH') end
if p and stop_of(p, { K.grandparent }) then return answer('STOPPING') end

redis.call('HSET', K.task, 'state', 'created', 'digest', A.digest, 'created_at', int(now), 'tlen', '0', 'fence', '0',
  'owner', '', 'number', int(redis.call('SCARD', K.all)), unpack(ARGV, 2))
redis.call('SADD', K.all, A.task)
open_run(load(K.task, A.task), p, 1)
return answer('CREATED')
