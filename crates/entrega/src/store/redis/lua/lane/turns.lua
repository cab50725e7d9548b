-- Which tenant goes next.

local tenants, tenants_touched = {}, {}

local function read_tenant(name, packed)
  local t = cmsgpack.unpack(packed)
  t.name = name
  t.gate = gate_of('tenant', t.kept, P .. 'starts:' .. name)
  return t
end

local function find_tenant(name)
  local t = tenants[name]
  if t == nil then
    local packed = redis.call('HGET', P .. 'tenants', name)
    t = packed and read_tenant(name, packed)
    tenants[name] = t
  end
  return t
end

-- The tenant, made on first sight.
local function enter(name)
  local t = find_tenant(name)
  if not t then
    t = { name = name, number = state.tenants, parked = 0, running = 0, weight = 1, round = state.rounds,
      processed = 0, last = 0, streak = 0, ring = { false, false, false }, kept = {} }
    t.gate = gate_of('tenant', t.kept, P .. 'starts:' .. name)
    if state.tenants == 0 then state.first = name end
    state.tenants = state.tenants + 1
    tenants[name] = t
    tenants_touched[name] = true
  end
  return t
end

-- Whose queue a tenant's jobs stand in: with turns off, everybody's stand in the first one's.
local function owner_of(t)
  if policy.turns then return t end
  return enter(state.first)
end

local queues = {}

local function queue(name, priority)
  local key = P .. 'queue:' .. priority .. ':' .. name
  local q = queues[key]
  if not q then
    q = { key = key, length = redis.call('LLEN', key), pushed = {} }
    queues[key] = q
  end
  return q
end

local function write_queue(q)
  if #q.pushed > 0 then
    call_many('RPUSH', q.key, q.pushed)
    q.pushed = {}
  end
end

local fronts = {}

local function ring_front(priority)
  if fronts[priority] == nil then fronts[priority] = redis.call('LINDEX', P .. 'ring:' .. priority, 0) end
  return fronts[priority]
end

local function join(t, priority)
  if t.parked ~= 0 or t.ring[priority + 1] then return end
  if not (t.ring[1] or t.ring[2] or t.ring[3]) then t.round = state.rounds end
  t.ring[priority + 1] = true
  tenants_touched[t.name] = true
  redis.call('RPUSH', P .. 'ring:' .. priority, t.name)
  if not fronts[priority] then fronts[priority] = nil end
end

-- Takes the front of a ring off it.
local function leave(priority)
  state.left[priority + 1] = 0
  local name = redis.call('LPOP', P .. 'ring:' .. priority)
  fronts[priority] = nil
  if name then
    enter(name).ring[priority + 1] = false
    tenants_touched[name] = true
  end
end

local function parked_member(t) return string.format('%010d:%s', t.number, t.name) end

local function park(t, priority, till)
  leave(priority)
  if t.parked ~= 0 then return end
  t.parked = till or -1
  if till then redis.call('ZADD', P .. 'parked', till, parked_member(t)) end
  tenants_touched[t.name] = true
end

local function unpark(t)
  if t.parked > 0 then redis.call('ZREM', P .. 'parked', parked_member(t)) end
  t.parked = 0
  tenants_touched[t.name] = true
  for priority = 0, 2 do
    if queue(t.name, priority).length > 0 then join(t, priority) end
  end
end

-- What held a tenant may have been relaxed since: under new rules everybody is looked at again.
local function unpark_all()
  for _, member in ipairs(redis.call('ZRANGE', P .. 'parked', 0, MOVES_MAX - 1)) do
    unpark(enter(string.sub(member, 12)))
  end
end

local function unpark_due()
  local due = redis.call('ZRANGEBYSCORE', P .. 'parked', '-inf', now, 'LIMIT', 0, MOVES_MAX)
  for _, member in ipairs(due) do unpark(enter(string.sub(member, 12))) end
end

local function tenant_hold(t)
  if t.running >= policy.tenant_concurrency and policy.turns then return 'tenant_concurrency', nil end
  return gate_hold(t.gate, t.running)
end

local function enqueue(e)
  local owner = owner_of(enter(e.tenant))
  local q = queue(owner.name, e.priority)
  q.pushed[#q.pushed + 1] = e.id
  q.length = q.length + 1
  join(owner, e.priority)
end

-- Takes a ready job off its queue, wherever it stands: the newest are looked at first.
local function dequeue(e)
  -- It stands where it was put, also if turns have been switched on or off since.
  for _, name in ipairs({ owner_of(enter(e.tenant)).name, e.tenant, state.first }) do
    local q = queue(name, e.priority)
    write_queue(q)
    local removed = redis.call('LREM', q.key, -1, e.id)
    q.length = q.length - removed
    if removed > 0 then return end
  end
end

-- The next job by priority and turn, taken off its queue, and whose queue that was. Tenants that may not go are parked
-- on the way; after many of them it is enough for one call.
local passed, is_tired = 0, false
local function take_front()
  for priority = 0, 2 do
    local name = ring_front(priority)
    while name do
      passed = passed + 1
      if passed > 2 * MOVES_MAX then
        is_tired = true
        return nil
      end
      local t = enter(name)
      local q = queue(name, priority)
      if q.length == 0 then
        leave(priority)
      else
        local held, till = tenant_hold(t)
        if not held then
          write_queue(q)
          q.length = q.length - 1
          return redis.call('LPOP', q.key), t
        end
        park(t, priority, till)
      end
      name = ring_front(priority)
    end
  end
  return nil
end

-- Counts the job that `take_front` gave as its owner's turn.
local function serve(t, owner, priority)
  local left = state.left
  if left[priority + 1] == 0 then
    left[priority + 1] = math.max(policy.batch * owner.weight, 1)
    state.rounds = state.rounds + 1
    owner.streak = 0
  end
  left[priority + 1] = left[priority + 1] - 1
  local is_over = left[priority + 1] == 0
  if queue(owner.name, priority).length == 0 then
    leave(priority)
  elseif is_over then
    redis.call('LMOVE', P .. 'ring:' .. priority, P .. 'ring:' .. priority, 'LEFT', 'RIGHT')
    fronts[priority] = nil
  end
  owner.round = state.rounds
  t.streak = t.streak + 1
  t.running = t.running + 1
  t.processed = t.processed + 1
  t.last = now
  gate_start(t.gate)
  tenants_touched[owner.name] = true
  tenants_touched[t.name] = true
end
