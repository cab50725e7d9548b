-- How a job moves from place to place, and who attempts it.

local nodes = {}

local function node_running(node)
  if not nodes[node] then nodes[node] = tonumber(redis.call('HGET', P .. 'nodes', node) or 0) end
  return nodes[node]
end

local function next_token()
  -- Never repeats, even if the server forgot the last ones: it is not smaller than the time.
  state.token = math.max(state.token + 1, now)
  return state.token
end

-- Moves an entry from wherever it comes to ready or delayed.
local function settle_in(e)
  if e.due > now then
    e.place = DELAYED
    redis.call('ZADD', P .. 'delays', e.due, e.id)
  else
    e.place = READY
    enqueue(e)
  end
  count(e, 1)
  touch(e)
end

-- Puts in a job that is nowhere in the lane yet.
local function insert(e)
  enter(e.tenant)
  entries[e.id] = e
  arrive_last(e)
  settle_in(e)
end

-- Takes out a job that waits.
local function take_out(e)
  if e.place == READY then
    dequeue(e)
  elseif e.place == DELAYED then
    redis.call('ZREM', P .. 'delays', e.id)
  end
  unlist(e)
  count(e, -1)
  forget(e)
end

local function release_due()
  local due = redis.call('ZRANGEBYSCORE', P .. 'delays', '-inf', now, 'LIMIT', 0, MOVES_MAX)
  if #due == 0 then return end
  preload(due)
  call_many('ZREM', P .. 'delays', due)
  for _, id in ipairs(due) do
    local e = entry(id)
    if e and e.place == DELAYED then
      count(e, -1)
      e.place = READY
      enqueue(e)
      count(e, 1)
      touch(e)
    end
  end
end

-- An attempt is over, however it ended.
local function end_attempt(e, lesson, pause, took)
  local t = enter(e.tenant)
  gate_learn(lane_gate, lesson, pause, took)
  gate_learn(t.gate, lesson, pause, took)
  t.running = t.running - 1
  tenants_touched[t.name] = true
  -- A gate may have opened with what this attempt taught it.
  if t.parked == -1 or (t.gate and t.parked ~= 0) then unpark(t) end
  nodes[e.node] = node_running(e.node) - 1
  leases[e.id] = false
  count(e, -1)
end

local function retry_at(e, at)
  arrive_first(e)
  e.due = at
  e.token = 0
  e.node = ''
  settle_in(e)
end

-- An attempt that did not come to its end starts over with the same number.
local function give_back(e)
  end_attempt(e, 'nothing', -1, 0)
  e.attempt = e.attempt - 1
  retry_at(e, now)
end

-- Gives back what a node has that was not heard of.
local function reap()
  local lapsed = redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', now, 'LIMIT', 0, MOVES_MAX)
  for _, id in ipairs(lapsed) do
    local e = entry(id)
    leases[id] = false
    if e and e.place == RUNNING then
      give_back(e)
    end
  end
  return #lapsed
end
