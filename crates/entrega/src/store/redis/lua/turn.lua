-- One round of a node at its desk: what it attempted is settled, and it takes its next jobs.
-- ARGV[4] the node, [5] how many jobs at most, [6] the lease, [7] the jobs that were delivered at once and where no gate
-- learns from it: how many of them in a row are of one priority, tenant and node. Then their ids, the entries they were
-- handed out with, and each id with its record. After these the ids of the other jobs that are settled, and for each of
-- them a head, a record, and a code or reason and an outbox where the head says so.
-- Answers: the moment, when to come back (-1: when told), settlements that came too late, expired jobs, the id and entry
-- of each job to attempt, all in one text, and what these carry, if they are few: their records, and their histories.
-- What many carry the node asks for, because whatever passes through a script costs the server several times as much.

-- How many, their priority, and how their entries end.
local ALIKE = '>HBBc0Bc0'
-- Id, token, what becomes of it, lesson, pause, took, a moment, an expiry, whether there is a text, and an outbox.
local SETTLED = '>c16dBBddddBB'
local LESSONS = { 'up', 'down', 'slower', 'nothing', 'apart', 'unused' }
-- What the jobs of one claim carry, at most: an answer must not take long to send.
local CARRIED_MAX = 8388608
local FEW = 8

local node, max, lease = ARGV[4], math.min(tonumber(ARGV[5]), MOVES_MAX), tonumber(ARGV[6])

local records, histories, histories_gone, settled, stale = {}, {}, {}, 0, {}

-- Most jobs are delivered at once and stand behind no gate. For those the rules come down to a few counts, and nothing
-- is kept in tables: what is to be written is listed right away.
local SIZES = state.sizes
local sub, unpack_struct, pack_struct = string.sub, struct.unpack, struct.pack
-- Read once; from here on the count is kept in `nodes`.
lane.node_running(node)

local function set(list, id, bytes)
  list[#list + 1] = id
  list[#list + 1] = bytes
end

-- What becomes of a job: its entry, the record, the moment, the expiry and the text of its settlement.
local becomes = {
  -- done
  function(e, record)
    if e.generation > 0 then lane.change_status(e.id, REPLAYED) end
    set(records, e.id, record)
    if e.has_history == 1 then histories_gone[#histories_gone + 1] = e.id end
    lane.forget(e)
    lane.note_end(e.id)
  end,
  -- retry
  function(e, record, moment)
    e.has_history = 1
    set(histories, e.id, record)
    lane.retry_at(e, lane.here(moment))
  end,
  -- blocked
  function(e, record, _, _, text)
    e.has_history = 1
    set(histories, e.id, record)
    e.due = now
    lane.block(e, text)
  end,
  -- dead
  function(e, record, moment, expires, text)
    lane.bury(e.id, record, { status = PENDING, generation = e.generation, moved = moment, expires = expires,
      tenant = e.tenant, code = text })
    if e.has_history == 1 then histories_gone[#histories_gone + 1] = e.id end
    lane.forget(e)
    lane.note_end(e.id)
  end,
}

-- Settles a job by all the rules.
local function settle(id, token, kind, lesson, pause, took, moment, expires, record, text, outbox)
  local e = lane.entry(id)
  if not (e and e.place == RUNNING and e.token == token) then
    stale[#stale + 1] = id
    return
  end
  lane.end_attempt(e, LESSONS[lesson], pause, took)
  becomes[kind](e, record, moment, expires, text)
  if outbox then redis.call('RPUSH', P .. 'outbox', outbox) end
  settled = settled + 1
end

-- The jobs that were delivered at once, by what they have in common, and how many they are. `nil` for what they have in
-- common if one of them stands behind a gate.
local function read_delivered()
  local packed, groups, names, count, at = ARGV[7], {}, {}, 0, 1
  while at <= #packed do
    local group = {}
    group.jobs, group.priority, group.tenant, group.node, at = unpack_struct(ALIKE, packed, at)
    groups[#groups + 1] = group
    names[#names + 1] = group.tenant
    count = count + group.jobs
  end
  lane.preload_tenants(names)
  local has_gate = lane_gate
  for _, group in ipairs(groups) do
    group.tenant = lane.enter(group.tenant)
    has_gate = has_gate or group.tenant.gate
  end
  return not has_gate and groups or nil, count
end

-- Whether each of so many jobs is as it was when it was handed out: then the lease is the same.
local function are_as_handed_out(found, first_entry)
  local argv = ARGV
  for index = 1, #found do
    if found[index] ~= argv[first_entry + index - 1] then return false end
  end
  return true
end

-- Settles them all at once.
local function settle_alike(groups, count, pairs_at)
  for _, group in ipairs(groups) do
    local t, running = group.tenant, group.priority * 5 + 1
    t.running = t.running - group.jobs
    tenants_touched[t.name] = true
    if t.parked == -1 then lane.unpark(t) end
    nodes[group.node] = lane.node_running(group.node) - group.jobs
    SIZES[running] = SIZES[running] - group.jobs
  end
  lane.call_many('HDEL', LIVE, ARGV, 8, 7 + count)
  lane.call_many('HSET', P .. 'jobs', ARGV, pairs_at, pairs_at + 2 * count - 1)
  if lane.has_waiters() then
    for index = 8, 7 + count do lane.note_end(ARGV[index]) end
  end
  settled = settled + count
end

-- The jobs that were delivered at once. Gives where the rest begins.
local function settle_delivered()
  local groups, count = read_delivered()
  if count == 0 then return 8 end
  local entries_at, pairs_at = 8 + count, 8 + 2 * count
  local found = redis.call('HMGET', LIVE, unpack(ARGV, 8, 7 + count))
  if groups and are_as_handed_out(found, entries_at) then
    settle_alike(groups, count, pairs_at)
    return pairs_at + 2 * count
  end
  for index = 1, count do
    local id, packed = ARGV[7 + index], found[index]
    entries[id] = packed and lane.read_entry(id, packed)
    local token = unpack_struct('>d', ARGV[entries_at + index - 1], 27)
    settle(id, token, 1, 1, -1, 0, now, FOREVER, ARGV[pairs_at + 2 * index - 1])
  end
  return pairs_at + 2 * count
end

local function settle_all()
  local at = settle_delivered()
  local ids = {}
  for id in string.gmatch(ARGV[at], '................') do ids[#ids + 1] = id end
  if #ids > 0 then lane.preload(ids) end
  at = at + 1
  for _ = 1, #ids do
    local id, token, kind, lesson, pause, took, moment, expires, has_text, has_outbox =
      unpack_struct(SETTLED, ARGV[at])
    settle(id, token, kind, lesson, pause, took, moment, expires, ARGV[at + 1], has_text == 1 and ARGV[at + 2],
      has_outbox == 1 and ARGV[at + 2 + has_text])
    at = at + 2 + has_text + has_outbox
  end
  if #histories > 0 then lane.call_many('HSET', P .. 'history', histories) end
  if #histories_gone > 0 then lane.call_many('HDEL', P .. 'history', histories_gone) end
  if #records > 0 then lane.call_many('HSET', P .. 'jobs', records) end
end

-- What is claimed: their ids, each job with its entry, and which of them are to leave the arrivals of a priority.
local claimed, claimed_ids, handed, arrived, carried_bytes, expired = 0, {}, {}, { [0] = {}, {}, {} }, 0, {}

local function hand_out(id, packed, size)
  claimed = claimed + 1
  claimed_ids[claimed] = id
  handed[2 * claimed - 1] = id
  handed[2 * claimed] = packed
  carried_bytes = carried_bytes + size
end

local function expire(e)
  expired[#expired + 1] = { e.id, e.tenant, e.priority, lane.state_of(e) }
  lane.unlist(e)
  lane.count(e, -1)
  lane.forget(e)
  lane.drop(e.id, 'dropped', 'ttl_expired: it was still waiting when its time to live ended')
end

local function start(e, is_past)
  local t = lane.enter(e.tenant)
  lane.unlist(e)
  lane.start_of(t, 1)
  if is_past then
    state.past = (state.past or 0) + 1
  else
    lane.gate_start(lane_gate, e.id)
    lane.gate_start(t.gate, e.id)
  end
  e.is_past = is_past
  lane.count(e, -1)
  e.place = RUNNING
  lane.count(e, 1)
  e.attempt = math.min(e.attempt + 1, 65535)
  e.token = lane.token()
  e.node = node
  nodes[node] = lane.node_running(node) + 1
  hand_out(e.id, lane.pack_entry(e), e.size)
  entries_touched[e.id] = nil
end

-- What entries begin with, up to their attempts (see `FORMAT`); read once for all that begin alike.
local beginnings = {}
local function beginning(packed)
  local text = sub(packed, 1, 6)
  local known = beginnings[text]
  if not known then
    local place, priority, generation, has_history, attempt = unpack_struct('>BBBBH', text)
    local kind = attempt > 0 and 2 or generation > 0 and 3 or 5
    known = { place = place, priority = priority, attempt = attempt, running = priority * 5 + 1,
      waiting = priority * 5 + kind,
      started = pack_struct('>BBBBH', RUNNING, priority, generation, has_history, math.min(attempt + 1, 65535)) }
    beginnings[text] = known
  end
  return known
end

-- What entries end with: the tenant, and the node that attempts it.
local function ending(name, runner) return pack_struct('>Bc0Bc0', #name, name, #runner, runner) end

-- How the entries of a tenant's jobs end before they start, and, with the token, after.
local endings = {}
local function endings_of(name)
  local known = endings[name]
  if not known then
    known = { waiting = ending(name, ''), running = pack_struct('>d', lane.token()) .. ending(name, node) }
    endings[name] = known
  end
  return known
end

-- Hands out a ready job of a tenant that stands behind no gate; what its entry begins with if it was one.
local function start_plain(id, packed, ends)
  local begins = beginning(packed)
  if begins.place ~= READY or begins.attempt == 65535 or sub(packed, 35) ~= ends.waiting then return nil end
  local size, _, expires = unpack_struct('>I4dd', packed, 7)
  if expires <= now then return nil end
  local leaving = arrived[begins.priority]
  leaving[#leaving + 1] = id
  hand_out(id, begins.started .. sub(packed, 7, 26) .. ends.running, size)
  return begins
end

-- Counts so many of them that began alike.
local function count_plain(begins, jobs)
  SIZES[begins.waiting] = SIZES[begins.waiting] - jobs
  SIZES[begins.running] = SIZES[begins.running] + jobs
  nodes[node] = nodes[node] + jobs
end

-- Starts one of those that the rules must look at, unless it is too late; whether it did.
local function start_other(id, packed, owner, priority, is_past)
  if entries[id] == nil then entries[id] = packed and lane.read_entry(id, packed) end
  local e = entries[id]
  if not e or e.place ~= READY then return false end
  if e.expires <= now then
    expire(e)
    return false
  end
  lane.begin_turn(owner, priority)
  start(e, is_past)
  return true
end

-- Starts the next jobs of a queue, those that are not too late.
local function start_all(front, count, owner, priority, is_past)
  local ends = not lane_gate and not owner.gate and endings_of(owner.name)
  local ids, packed, first = front.ids, front.packed, front.at
  local others, plain, alike, last = 0, 0, 0, nil
  front.at = first + count
  for index = first, first + count - 1 do
    local id, entry = ids[index], packed[index]
    local begins = ends and entry and entries[id] == nil and start_plain(id, entry, ends)
    if begins then
      if begins ~= last then
        if last then count_plain(last, alike) end
        last, alike = begins, 0
      end
      alike = alike + 1
      plain = plain + 1
    elseif start_other(id, entry, owner, priority, is_past) then
      others = others + 1
    end
  end
  if last then
    lane.begin_turn(owner, priority)
    count_plain(last, alike)
    lane.start_of(owner, plain)
  end
  if plain + others > 0 then lane.serve(owner, priority, plain + others) end
end

local function sooner(one, other)
  if not one then return other end
  if not other then return one end
  return math.min(one, other)
end

local function first_score(key)
  return tonumber(redis.call('ZRANGE', P .. key, 0, 0, 'WITHSCORES')[2])
end

-- When to look for jobs that were abandoned. Most leases that lapse are of jobs that have ended: nobody comes for each.
local LOOK_EVERY = 250000
local function next_lapse()
  local lapses = first_score('leases')
  return lapses and math.ceil(lapses / LOOK_EVERY) * LOOK_EVERY
end

-- When something comes by itself.
local function next_moment()
  return sooner(state.delayed > 0 and first_score('delays') or nil, state.parked > 0 and first_score('parked') or nil)
end

-- Takes what may go; says when to come back, `nil` for "when told".
local function claim()
  lane.release_due()
  local rules = redis.sha1hex(ARGV[3])
  if state.rules == rules then
    lane.unpark_due()
  else
    state.rules = rules
    lane.unpark_all()
  end
  while claimed < max and #expired < MOVES_MAX and carried_bytes < CARRIED_MAX do
    local held, till, is_past = lane.lane_hold(node)
    if held then return till end
    local room = policy.concurrency + policy.ahead - nodes[node]
    local front, count, owner, priority = lane.take_front(math.min(max - claimed, room))
    if not front then
      if is_tired then return now end
      return next_moment()
    end
    start_all(front, count, owner, priority, is_past)
  end
  -- Enough for one call; unless all slots are taken there may be more at once.
  if claimed < max then return now end
  return next_moment()
end

local function carried()
  if claimed == 0 or claimed > FEW then return {} end
  return { redis.call('HMGET', P .. 'jobs', unpack(claimed_ids)),
    redis.call('HMGET', P .. 'history', unpack(claimed_ids)) }
end

-- Writes what was listed right away.
local function write_plain()
  if claimed > 0 then
    local token = pack_struct('>d', lane.token())
    lane.call_many('HSET', LIVE, handed)
    redis.call('ZADD', P .. 'leases', now + lease, table.concat(claimed_ids, token) .. token)
  end
  for priority = 0, 2 do
    local leaving = arrived[priority]
    if #leaving > 0 then lane.call_many('ZREM', P .. 'arrivals:' .. priority, leaving) end
  end
end

settle_all()
local come_back, lapsed = nil, 0
if max > 0 then
  lapsed = lane.reap()
  come_back = claim()
  if claimed < max then
    state.hungry = true
  elseif was_hungry then
    -- There may be more, and another node has room for it.
    lane.wake()
  end
  if not state.paused and lane.running_in_all() > claimed then
    come_back = sooner(come_back, next_lapse())
  end
elseif settled > 0 then
  lane.wake()
end
if settled + lapsed + claimed + #expired > 0 or state.hungry ~= was_hungry or next(entries_touched)
  or next(tenants_touched) then
  write_plain()
  lane.flush()
end
return { now, come_back or -1, stale, expired, table.concat(handed), carried() }
