-- Requests from outside the task: an accepted one is answered once. Refused ones changed nothing and are not kept.
local function known() return redis.call('HGET', K.ops, A.op) end

local function remember(text)
  redis.call('HSET', K.ops, A.op, text)
  return text
end

local function sender_lost()
  return A.sender and not holds(load(K.sender, A.sender), A.sender_token)
end
