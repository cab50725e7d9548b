-- How a job moves from place to place, and who attempts it.

local nodes = {}

function lane.node_running(node)
  if not nodes[node] then nodes[node] = tonumber(redis.call('HGET', P .. 'nodes', node) or 0) end
  return nodes[node]
end

-- The token of whatever is claimed in this call.
local token = nil
function lane.token()
  if not token then
    -- Never repeats, even if the server forgot the last ones: it is not smaller than the time.
    token = math.max(state.token + 1, now)
    state.token = token
  end
  return token
end

-- What keeps a node from starting anything of the lane: its name, and until when; and if nothing does, whether the next
-- job goes past the gates.
function lane.lane_hold(node)
  if state.paused then return 'paused', nil end
  if lane.node_running(node) >= policy.concurrency + policy.ahead then return 'concurrency', nil end
  if not lane_gate then return nil end
  return lane.gate_hold(lane_gate, lane.running_in_all() - (state.past or 0))
end

-- Moves an entry from wherever it comes to ready or delayed.
function lane.settle_in(e)
  if e.due > now then
    e.place = DELAYED
    redis.call('ZADD', P .. 'delays', e.due, e.id)
    state.delayed = state.delayed + 1
  else
    e.place = READY
    lane.enqueue(e)
  end
  lane.count(e, 1)
  lane.touch(e)
end

-- Puts in a job that is nowhere in the lane yet.
function lane.insert(e)
  lane.enter(e.tenant)
  entries[e.id] = e
  lane.arrive_last(e)
  lane.settle_in(e)
end

-- Takes out a job that waits.
function lane.take_out(e)
  if e.place == READY then
    lane.dequeue(e)
  elseif e.place == DELAYED then
    redis.call('ZREM', P .. 'delays', e.id)
    state.delayed = state.delayed - 1
  end
  lane.unlist(e)
  lane.count(e, -1)
  lane.forget(e)
end

function lane.release_due()
  if state.delayed == 0 then return end
  local due = redis.call('ZRANGEBYSCORE', P .. 'delays', '-inf', now, 'LIMIT', 0, MOVES_MAX)
  if #due == 0 then return end
  lane.preload(due)
  lane.call_many('ZREM', P .. 'delays', due)
  state.delayed = state.delayed - #due
  for _, id in ipairs(due) do
    local e = lane.entry(id)
    if e and e.place == DELAYED then
      lane.count(e, -1)
      e.place = READY
      lane.enqueue(e)
      lane.count(e, 1)
      lane.touch(e)
    end
  end
end

-- An attempt is over, however it ended. From one that went past the gates they learn nothing, whatever it says.
function lane.end_attempt(e, lesson, pause, took)
  local t = lane.enter(e.tenant)
  if e.is_past then
    e.is_past = false
    state.past = state.past - 1
  else
    lane.gate_learn(lane_gate, e.id, lesson, pause, took)
    lane.gate_learn(t.gate, e.id, lesson, pause, took)
  end
  t.running = t.running - 1
  tenants_touched[t.name] = true
  -- A gate may have opened with what this attempt taught it.
  if t.parked == -1 or (t.gate and t.parked ~= 0) then lane.unpark(t) end
  nodes[e.node] = lane.node_running(e.node) - 1
  lane.count(e, -1)
end

function lane.retry_at(e, at)
  lane.arrive_first(e)
  e.due = at
  e.token = 0
  e.node = ''
  lane.settle_in(e)
end

-- An attempt that did not come to its end starts over with the same number.
function lane.give_back(e)
  lane.end_attempt(e, 'nothing', -1, 0)
  e.attempt = e.attempt - 1
  lane.retry_at(e, now)
end

-- A lease is one for all jobs of a claim: a member of `leases`, made of the id and the token of each. A job whose lease
-- was renewed has one of its own besides. Nobody takes them out when their jobs end; they lapse.
local LEASED = 24
local LAPSED_MAX = 64

function lane.leased(e) return e.id .. struct.pack('>d', e.token) end

-- Whether a job still belongs to a lease that has lapsed.
local function is_abandoned(e, job, lapsed)
  if not e or e.place ~= RUNNING or lane.leased(e) ~= job then return false end
  if #lapsed == LEASED then return true end
  local renewed = redis.call('ZSCORE', P .. 'leases', job)
  return not renewed or tonumber(renewed) <= now
end

-- Gives back what a node has that was not heard of; how much that is.
function lane.reap()
  if lane.running_in_all() == 0 then
    redis.call('DEL', P .. 'leases')
    return 0
  end
  local looked, given, leases = 0, 0, 0
  for _, lapsed in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', now, 'LIMIT', 0, LAPSED_MAX)) do
    if looked >= MOVES_MAX then break end
    local ids = {}
    for at = 1, #lapsed, LEASED do ids[#ids + 1] = string.sub(lapsed, at, at + 15) end
    lane.preload(ids)
    for index, id in ipairs(ids) do
      local e = entries[id]
      if is_abandoned(e, string.sub(lapsed, LEASED * index - 23, LEASED * index), lapsed) then
        lane.give_back(e)
        given = given + 1
      end
    end
    looked = looked + #ids
    leases = leases + 1
  end
  -- Those that lapsed first are the first.
  if leases > 0 then redis.call('ZREMRANGEBYRANK', P .. 'leases', 0, leases - 1) end
  return given
end
