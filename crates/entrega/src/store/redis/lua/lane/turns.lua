-- Which tenant goes next.

local tenants, tenants_touched = {}, {}

-- Number, parked, running, weight, round, processed, last, streak, on which rings, ready jobs by priority, and then
-- what its gate keeps.
local TENANT = '>IdIIddddBBBIII'

function lane.read_tenant(name, packed)
  local number, parked, running, weight, round, processed, last, streak, ring0, ring1, ring2, ready0, ready1, ready2,
    at = struct.unpack(TENANT, packed)
  local t = { name = name, number = number, parked = parked, running = running, weight = weight, round = round,
    processed = processed, last = last, streak = streak, ring = { ring0 == 1, ring1 == 1, ring2 == 1 },
    ready = { ready0, ready1, ready2 }, kept = at > #packed and {} or cmsgpack.unpack(string.sub(packed, at)) }
  t.gate = lane.gate_of('tenant', t.kept, name)
  return t
end

function lane.find_tenant(name)
  local t = tenants[name]
  if t == nil then
    local packed = redis.call('HGET', P .. 'tenants', name)
    t = packed and lane.read_tenant(name, packed)
    tenants[name] = t
  end
  return t
end

-- The tenant, made on first sight.
function lane.enter(name)
  local t = lane.find_tenant(name)
  if not t then
    t = { name = name, number = state.tenants, parked = 0, running = 0, weight = 1, round = state.rounds,
      processed = 0, last = 0, streak = 0, ring = { false, false, false }, ready = { 0, 0, 0 }, kept = {} }
    t.gate = lane.gate_of('tenant', t.kept, name)
    if state.tenants == 0 then state.first = name end
    state.tenants = state.tenants + 1
    tenants[name] = t
    tenants_touched[name] = true
  end
  return t
end

-- Whose queue a tenant's jobs stand in: with turns off, everybody's stand in the first one's.
function lane.owner_of(t)
  if policy.turns then return t end
  return lane.enter(state.first)
end

local QUEUE = { [0] = P .. 'queue:0:', P .. 'queue:1:', P .. 'queue:2:' }
local RING = { [0] = P .. 'ring:0', P .. 'ring:1', P .. 'ring:2' }

-- What is to be added to the queues: key -> ids.
local pushed = {}

function lane.write_queue(key)
  if pushed[key] then
    lane.call_many('RPUSH', key, pushed[key])
    pushed[key] = nil
  end
end

-- What was read of the queues: ids and their entries, which of them is next, and how many stand before them. Whatever
-- was taken leaves its queue when everything is written.
local fronts = {}

function lane.write_front(key)
  local front = fronts[key]
  local taken = front.before + front.at - 1
  if taken > 0 then redis.call('LPOP', key, taken) end
  fronts[key] = nil
end

-- The front of a queue, with at least one job if it has any; so many are read at once.
function lane.queue_front(key, many)
  local front = fronts[key] or { before = 0, at = 1, ids = {}, packed = {} }
  if front.at > #front.ids then
    lane.write_queue(key)
    local before = front.before + #front.ids
    local ids = redis.call('LRANGE', key, before, before + many - 1)
    front = { before = before, at = 1, ids = ids, packed = #ids > 0 and redis.call('HMGET', LIVE, unpack(ids)) }
    fronts[key] = front
  end
  return front
end

-- The tenants in line: the first of them, whether these are all, who joined at the end, and how many have left the front.
local AHEAD = 32
local function new_ring() return { at = 1, names = {}, joined = {} } end
local rings = { [0] = new_ring(), new_ring(), new_ring() }

function lane.write_ring(priority)
  local ring = rings[priority]
  local left, known = ring.at - 1, #ring.names
  if left > 0 and known > 0 then redis.call('LPOP', RING[priority], math.min(left, known)) end
  -- Of those that joined, some may have left again.
  lane.call_many('RPUSH', RING[priority], ring.joined, math.max(left - known, 0) + 1)
  rings[priority] = new_ring()
end

-- Reads many tenants at once.
function lane.preload_tenants(names)
  if #names == 0 then return end
  local found = redis.call('HMGET', P .. 'tenants', unpack(names))
  for index, name in ipairs(names) do
    if tenants[name] == nil and found[index] then tenants[name] = lane.read_tenant(name, found[index]) end
  end
end

-- Who is first in line. Once everybody in line is known, nobody need be asked for again.
function lane.ring_front(priority)
  local ring = rings[priority]
  local known = #ring.names
  if ring.at <= known then return ring.names[ring.at] end
  if ring.is_whole then return ring.joined[ring.at - known] end
  lane.write_ring(priority)
  ring = rings[priority]
  ring.names = redis.call('LRANGE', RING[priority], 0, AHEAD - 1)
  ring.is_whole = #ring.names < AHEAD
  lane.preload_tenants(ring.names)
  return ring.names[1]
end

function lane.join(t, priority)
  if t.parked ~= 0 or t.ring[priority + 1] then return end
  if not (t.ring[1] or t.ring[2] or t.ring[3]) then t.round = state.rounds end
  t.ring[priority + 1] = true
  tenants_touched[t.name] = true
  local ring = rings[priority]
  ring.joined[#ring.joined + 1] = t.name
end

-- Takes the front of a ring off it.
function lane.leave(priority)
  state.left[priority + 1] = 0
  local name = lane.ring_front(priority)
  if name then
    rings[priority].at = rings[priority].at + 1
    lane.enter(name).ring[priority + 1] = false
    tenants_touched[name] = true
  end
end

-- The front of a ring goes to its end.
function lane.rotate(priority)
  local name = lane.ring_front(priority)
  local ring = rings[priority]
  ring.joined[#ring.joined + 1] = name
  ring.at = ring.at + 1
end

function lane.parked_member(t) return string.format('%010d:%s', t.number, t.name) end

function lane.park(t, priority, till)
  lane.leave(priority)
  if t.parked ~= 0 then return end
  t.parked = till or -1
  if till then
    redis.call('ZADD', P .. 'parked', till, lane.parked_member(t))
    state.parked = state.parked + 1
  end
  tenants_touched[t.name] = true
end

function lane.unpark(t)
  if t.parked > 0 then
    redis.call('ZREM', P .. 'parked', lane.parked_member(t))
    state.parked = state.parked - 1
  end
  t.parked = 0
  tenants_touched[t.name] = true
  for priority = 0, 2 do
    if t.ready[priority + 1] > 0 then lane.join(t, priority) end
  end
end

-- Sets a tenant's own throttle, or takes it away (`max` is 0). A tenant that it held is looked at again. Without turns
-- nobody can be held back alone.
function lane.set_throttle(name, max, per)
  if not policy.turns then return end
  local t = max > 0 and lane.enter(name) or lane.find_tenant(name)
  if not t then return end
  local own = t.kept.own
  if own and own.max == max and own.per == per or not own and max == 0 then return end
  if max > 0 then
    t.kept.own = { max = max, per = per }
    lane.forget_starts_after(lane.own_starts(name), per)
  else
    t.kept.own = nil
    redis.call('DEL', lane.own_starts(name))
  end
  t.gate = lane.gate_of('tenant', t.kept, name)
  tenants_touched[name] = true
  if t.parked ~= 0 then lane.unpark(t) end
end

-- What held a tenant may have been relaxed since: under new rules everybody is looked at again.
function lane.unpark_all()
  if state.parked == 0 then return end
  for _, member in ipairs(redis.call('ZRANGE', P .. 'parked', 0, MOVES_MAX - 1)) do
    lane.unpark(lane.enter(string.sub(member, 12)))
  end
end

function lane.unpark_due()
  if state.parked == 0 then return end
  local due = redis.call('ZRANGEBYSCORE', P .. 'parked', '-inf', now, 'LIMIT', 0, MOVES_MAX)
  for _, member in ipairs(due) do lane.unpark(lane.enter(string.sub(member, 12))) end
end

function lane.tenant_hold(t)
  if t.running >= policy.tenant_concurrency and policy.turns then return 'tenant_concurrency', nil end
  return lane.gate_hold(t.gate, t.running)
end

function lane.enqueue(e)
  local owner = lane.owner_of(lane.enter(e.tenant))
  local key = QUEUE[e.priority] .. owner.name
  local list = pushed[key]
  if not list then
    list = {}
    pushed[key] = list
  end
  list[#list + 1] = e.id
  owner.ready[e.priority + 1] = owner.ready[e.priority + 1] + 1
  tenants_touched[owner.name] = true
  lane.join(owner, e.priority)
end

-- Takes a ready job off its queue, wherever it stands: the newest are looked at first.
function lane.dequeue(e)
  -- It stands where it was put, also if turns have been switched on or off since.
  for _, name in ipairs({ lane.owner_of(lane.enter(e.tenant)).name, e.tenant, state.first }) do
    local key = QUEUE[e.priority] .. name
    lane.write_queue(key)
    if fronts[key] then lane.write_front(key) end
    if redis.call('LREM', key, -1, e.id) > 0 then
      local owner = lane.enter(name)
      owner.ready[e.priority + 1] = owner.ready[e.priority + 1] - 1
      tenants_touched[name] = true
      return
    end
  end
end

-- How many of a tenant's jobs may go in a row before anything must be looked at again. Gates judge every start.
function lane.run_of(t, priority)
  if lane_gate or t.gate or not policy.turns then return 1 end
  local left = state.left[priority + 1]
  if left == 0 then left = math.max(policy.batch * t.weight, 1) end
  return math.min(left, policy.tenant_concurrency - t.running)
end

-- How many of a tenant's jobs to read at once, if so many may go in a row: enough turns for its share of all that the
-- call may take. Where gates judge every start, the next may be held.
local ring_lengths = {}
function lane.share_of(t, priority, run, most)
  if lane_gate or t.gate then return 1 end
  local length = ring_lengths[priority] or redis.call('LLEN', RING[priority])
  ring_lengths[priority] = length
  return run * math.ceil(most / (run * math.max(length, 1)))
end

-- The next jobs by priority and turn, at most so many: the front of their queue, how many of it, whose queue that is, and
-- of which priority. Tenants that may not go are parked on the way; after many of them it is enough for one call.
local passed, is_tired = 0, false
function lane.take_front(most)
  for priority = 0, 2 do
    local name = lane.ring_front(priority)
    while name do
      passed = passed + 1
      if passed > 2 * MOVES_MAX then
        is_tired = true
        return nil
      end
      local t = lane.enter(name)
      if t.ready[priority + 1] == 0 then
        lane.leave(priority)
      else
        local held, till = lane.tenant_hold(t)
        if not held then
          local run = math.min(most, lane.run_of(t, priority))
          local front = lane.queue_front(QUEUE[priority] .. name, lane.share_of(t, priority, run, most))
          local count = math.min(run, #front.ids - front.at + 1)
          -- A queue that holds fewer than was counted would never be left.
          t.ready[priority + 1] = count > 0 and t.ready[priority + 1] - count or 0
          tenants_touched[name] = true
          return front, count, t, priority
        end
        lane.park(t, priority, till)
      end
      name = lane.ring_front(priority)
    end
  end
  return nil
end

-- The first of the jobs that `take_front` gave is about to start.
function lane.begin_turn(owner, priority)
  if state.left[priority + 1] == 0 then
    state.left[priority + 1] = math.max(policy.batch * owner.weight, 1)
    state.rounds = state.rounds + 1
    owner.streak = 0
  end
end

-- So many of them started: they count as their owner's turn.
function lane.serve(owner, priority, jobs)
  local left = state.left
  left[priority + 1] = left[priority + 1] - jobs
  local is_over = left[priority + 1] == 0
  if owner.ready[priority + 1] == 0 then
    lane.leave(priority)
  elseif is_over then
    lane.rotate(priority)
  end
  owner.round = state.rounds
  tenants_touched[owner.name] = true
end

-- Counts some of them as their tenant's.
function lane.start_of(t, jobs)
  t.streak = t.streak + jobs
  t.running = t.running + jobs
  t.processed = t.processed + jobs
  t.last = now
  tenants_touched[t.name] = true
end
