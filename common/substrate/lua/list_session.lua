-- KEYS: the list, its counter, the index by time. ARGV: session id, S. The list is in a slot of its own (PROTOCOL 7).
local clock = redis.call('TIME')
local now = string.format('%.0f', tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000))
local version = redis.call('INCR', KEYS[2])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', version) .. '@' .. now)
redis.call('ZADD', KEYS[3], 'NX', now, ARGV[2])
return cjson.encode({ status = 'OK', version = version })
