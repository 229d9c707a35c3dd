-- Questions: id → `T run deadline asked-at body`; `answer:` + id → the answer, written once. Bodies are never read.
-- The body of an answer is a JSON object, so this word is none.
local TIMEOUT = 'timeout'

-- What is known of a question of this task, or nil.
local function question(qid)
  local asker, run, deadline = string.match(redis.call('HGET', K.ask, qid) or '', '^(%S+) (%d+) (%d+) ')
  if asker ~= A.task then return nil end
  return { run = tonumber(run), deadline = tonumber(deadline) }
end

local function answer_to(qid) return redis.call('HGET', K.ask, 'answer:' .. qid) end

local function settle_question(qid, text) redis.call('HSETNX', K.ask, 'answer:' .. qid, text) end
