-- Effective stop: the run's own, or that of any ancestor at the run in which this run was opened.
local ANCESTORS = { K.parent, K.grandparent }

-- `ancestors`: keys of the parent and grandparent of `r`. Returns nil, or what stops the run.
local function stop_of(r, ancestors)
  if r.stop_upto >= r.run then
    return { kind = r.stop_kind, reason = r.stop_reason, at = r.stop_at, own = true }
  end
  for i, link in ipairs(links(r)) do
    local s = redis.call('HMGET', ancestors[i], 'stop_upto', 'stop_kind', 'stop_reason', 'stop_at')
    if tonumber(s[1] or '0') >= link[2] then
      return { kind = s[2] or 'user', reason = s[3] or '', at = tonumber(s[4] or '0'), own = false }
    end
  end
  return nil
end

-- The first stop of a run says why; later ones change nothing.
local function accept_stop(r, kind, reason)
  if r.stop_upto >= r.run then return end
  put(r, { stop_upto = r.run, stop_kind = kind, stop_reason = reason, stop_at = now })
end
