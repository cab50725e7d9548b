-- What a lane can tell about itself. ARGV[4] `lane`, `explain` or `tenants`; [5] the node, or for tenants a cursor;
-- [6] the job to explain.

local function hold_row(name, till) return { name, till or -1 } end

-- The state of the lane's breaker, until when, and its counts.
local function breaker_row()
  if not (lane_gate and lane_gate.breaker) then return false end
  local kept = state.gate
  local is_open = kept.shut == 'open' and now < kept.till
  return { is_open and 'open' or kept.shut and 'half_open' or 'closed', is_open and kept.till or -1, kept.opened or 0,
    kept.half_opened or 0, kept.closed or 0 }
end

local function cadence_row()
  if not (lane_gate and lane_gate.cadence) then return false end
  return { state.gate.interval or lane_gate.cadence.initial, state.gate.penalties or 0 }
end

local function lane_row()
  local held, till = lane.lane_hold(ARGV[5])
  local oldest = {}
  for priority = 0, 2 do
    oldest[#oldest + 1] = redis.call('ZRANGE', P .. 'arrivals:' .. priority, 0, 0)[1]
  end
  return { state.paused and 1 or 0, state.sizes, state.blocked, state.dead,
    held and hold_row(held, till) or false, breaker_row(), cadence_row(), oldest }
end

local function explain()
  local e = lane.entry(ARGV[6])
  if not e or e.place == BLOCKED then return {} end
  local holds = {}
  if e.place ~= RUNNING then
    if state.paused then holds[#holds + 1] = hold_row('paused') end
    if e.due > now then holds[#holds + 1] = hold_row('delay', e.due) end
    local held, till = lane.lane_hold(ARGV[5])
    if held and held ~= 'paused' then holds[#holds + 1] = hold_row(held, till) end
    held, till = lane.tenant_hold(lane.find_tenant(e.tenant))
    if held then holds[#holds + 1] = hold_row(held, till) end
    if #holds == 0 then holds[1] = hold_row('turn') end
  end
  return { lane.state_of(e), e.attempt, e.due, holds }
end

local function tenant_rows()
  local page = redis.call('HSCAN', P .. 'tenants', ARGV[5], 'COUNT', 200)
  local rows = {}
  for at = 1, #page[2], 2 do
    local t = lane.read_tenant(page[2][at], page[2][at + 1])
    local waits = t.ready[1] + t.ready[2] + t.ready[3]
    rows[#rows + 1] = { t.name, t.last, waits > 0 and state.rounds - t.round or 0, t.processed, t.streak, t.weight,
      t.running, t.number }
  end
  return { page[1], rows }
end

if ARGV[4] == 'lane' then return lane_row() end
if ARGV[4] == 'explain' then return explain() end
return tenant_rows()
