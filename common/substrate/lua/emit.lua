-- uses: base events ownership stop inbox presence owner
-- ARGV[2]: the event or empty; ARGV[3..]: output chunks.
local OUTPUT_KEPT = '10000'
local ACTIVITIES_KEPT = 5

local function write_activities()
  redis.call('DEL', K.act)
  for i = math.max(1, #A.activities - ACTIVITIES_KEPT + 1), #A.activities do
    redis.call('RPUSH', K.act, A.activities[i])
  end
end

local r = load(K.task, A.task)
if not holds(r, A.token) then return answer('LOST') end
if r.last_op == A.op then return r.last_answer end

resume(r)
for i = 3, #ARGV do
  redis.call('XADD', K.out, 'MAXLEN', '~', OUTPUT_KEPT, '*', 'run', int(r.run), 'chunk', ARGV[i])
end
if A.activities then write_activities() end
if A.token_at then progressed(r, { token_at = now }) end
if A.tool_at then progressed(r, { tool_at = now }) end
if #ARGV > 2 or A.token_at then move(r, 'producing_output') end
if ARGV[2] ~= '' then event(r, A.event_type, 0, ARGV[2]) end
return keep(r, ack(r))
