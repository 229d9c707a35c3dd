-- Keys, arguments, server time, records. Every script declares the same keys, in the order of keys.py.
local K = {
  task = KEYS[1], transcript = KEYS[2], inbox = KEYS[3], out = KEYS[4], act = KEYS[5], tools = KEYS[6],
  runs = KEYS[7], open = KEYS[8], all = KEYS[9], ent = KEYS[10], fate = KEYS[11], ops = KEYS[12], ev = KEYS[13],
  ask = KEYS[14], parent = KEYS[15], parent_inbox = KEYS[16], grandparent = KEYS[17], sender = KEYS[18],
}
-- Small arguments come decoded; large JSON follows in ARGV[2..] and is never read here.
local A = cjson.decode(ARGV[1])

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

-- Numbers are written by hand: tostring() would turn times into 1.7e+12.
local function int(number) return string.format('%.0f', number) end

local TERMINAL = { completed = true, failed = true, stopped = true }

local TEXTS = {
  'state', 'owner', 'proc', 'park', 'why', 'chain', 'stop_kind', 'stop_reason', 'kind', 'parent', 'fin_by', 'last_op',
  'last_answer', 'usage', 'asked',
}
local NUMBERS = {
  'run', 'fence', 'lease_until', 'tlen', 'park_at', 'stop_upto', 'stop_at', 'open_children', 'attempts',
  'attempts_total', 'wake_at', 'wake_n', 'sent', 'seal', 'started_at', 'lost_fence', 'back_fence', 'limit_ms', 'silent',
}
local FIELDS = {}
for _, name in ipairs(TEXTS) do FIELDS[#FIELDS + 1] = name end
for _, name in ipairs(NUMBERS) do FIELDS[#FIELDS + 1] = name end

-- The small fields of a record, or nil. `key` and `id` go with it.
local function load(key, id)
  local values = redis.call('HMGET', key, unpack(FIELDS))
  if not values[1] then return nil end
  local r = { key = key, id = id }
  for i, name in ipairs(FIELDS) do
    if i <= #TEXTS then r[name] = values[i] or '' else r[name] = tonumber(values[i] or '0') end
  end
  return r
end

local function put(r, changes)
  local flat = {}
  for name, value in pairs(changes) do
    r[name] = value
    flat[#flat + 1] = name
    flat[#flat + 1] = type(value) == 'number' and int(value) or value
  end
  redis.call('HSET', r.key, unpack(flat))
end

local function answer(status, fields)
  fields = fields or {}
  fields.status = status
  return cjson.encode(fields)
end

local function starts_with(text, prefix) return string.sub(text, 1, #prefix) == prefix end

-- [(parent, its run), (grandparent, its run)], taken when the run was opened.
local function links(r)
  if r.chain == '' then return {} end
  return cjson.decode(r.chain)
end
