-- KEYS: the list. ARGV: session id, version, least age in milliseconds. Only the version that was looked at goes.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local value = redis.call('HGET', KEYS[1], ARGV[1])
local version, listed = string.match(value or '', '^(%d+)@(%d+)$')
if version ~= ARGV[2] or now - tonumber(listed) < tonumber(ARGV[3]) then return cjson.encode({ status = 'NO' }) end
redis.call('HDEL', KEYS[1], ARGV[1])
return cjson.encode({ status = 'OK' })
