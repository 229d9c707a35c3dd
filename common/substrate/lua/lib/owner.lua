-- What every owner's write shares: its answer, kept under the op id, and the checks that come first.
local function ack(r)
  local stop = stop_of(r, ANCESTORS)
  return answer(stop and 'STOP' or 'OK', {
    stop = stop or nil, unread = unread(K.inbox), open_children = r.open_children, tlen = r.tlen,
  })
end

local function keep(r, text)
  put(r, { last_op = A.op, last_answer = text })
  return text
end
