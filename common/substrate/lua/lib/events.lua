-- Events for followers. Content stays in the transcript; an event names the line.
local EVENTS_KEPT = '100000'

local function event(r, kind, seq, data)
  redis.call('XADD', K.ev, 'MAXLEN', '~', EVENTS_KEPT, '*', 'task', r.id, 'run', int(r.run), 'type', kind,
    'seq', int(seq), 'by', r.proc, 'data', data)
end

-- How a run is heard of, where no state tells it.
local function tell(r, presence)
  event(r, 'system', 0, '{"subtype":"status","data":{"presence":"' .. presence .. '"}}')
end

local function move(r, state)
  if r.state == state then return end
  put(r, { state = state })
  event(r, 'state', 0, '{"state":"' .. state .. '"}')
end

-- A resend may have set an owned task back to queued; any sign of life of its owner undoes that.
local function resume(r)
  if r.state == 'queued' then move(r, 'running') end
end
