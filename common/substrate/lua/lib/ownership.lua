local function free(r) return r.owner == '' or r.lease_until <= now end

local function holds(r, token) return r ~= nil and r.owner ~= '' and r.owner == token and not TERMINAL[r.state] end
