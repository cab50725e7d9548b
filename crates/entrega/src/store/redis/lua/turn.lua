-- One round of a node at its desk: what it attempted is settled, and it takes its next jobs.
-- ARGV[4] the node, [5] how many jobs at most, [6] the lease, [7] the ids of the jobs that are settled; then for each
-- of these a head, a record, and a code or reason and an outbox where the head says so.
-- Answers: the moment, when to come back (-1: when told), settlements that came too late, expired jobs, and for each
-- job to attempt a head, its record, its history or nothing.

-- Id, token, what becomes of it, lesson, pause, took, a moment, an expiry, whether there is a text, and an outbox.
local SETTLED = '>c16dBBddddBB'
local LESSONS = { 'up', 'down', 'slower', 'nothing', 'apart', 'unused' }
-- Id, token, attempt, generation, expiry, whether it went past an open breaker.
local TO_ATTEMPT = '>c16dHBdB'
-- What the jobs of one claim carry, at most: an answer must not take long to send.
local CARRIED_MAX = 8388608

local node, max, lease = ARGV[4], math.min(tonumber(ARGV[5]), MOVES_MAX), tonumber(ARGV[6])
-- Written out once: making a text of a number this long is slow.
local lease_end = string.format('%d', now + lease)

local records, histories, histories_gone, settled, stale = {}, {}, {}, 0, {}

-- Most jobs are delivered at once and stand behind no gate. For those the rules come down to a few counts, and nothing
-- is kept in tables: what is to be written is listed right away.
local LIVE, SIZES = P .. 'live', state.sizes
local live_set, live_gone, leases_set, leases_gone, arrivals_gone = {}, {}, {}, {}, { [0] = {}, {}, {} }
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

-- Settles a job that was delivered and stands behind no gate; whether it was one.
local function settle_plain(id, token, packed, record)
  local place, priority, generation, has_history, _, _, _, _, held, whose, runner = struct.unpack(FORMAT, packed)
  local t = tenants[whose] or lane.enter(whose)
  if place ~= RUNNING or held ~= token or generation > 0 or runner ~= node or t.gate then return false end
  t.running = t.running - 1
  tenants_touched[whose] = true
  if t.parked == -1 then lane.unpark(t) end
  nodes[node] = nodes[node] - 1
  SIZES[priority * 5 + 1] = SIZES[priority * 5 + 1] - 1
  live_gone[#live_gone + 1] = id
  leases_gone[#leases_gone + 1] = id .. LEASE_TAIL
  set(records, id, record)
  if has_history == 1 then histories_gone[#histories_gone + 1] = id end
  lane.note_end(id)
  entries[id] = false
  settled = settled + 1
  return true
end

local function settle_all()
  local ids = {}
  for id in string.gmatch(ARGV[7], '................') do ids[#ids + 1] = id end
  if #ids == 0 then return end
  local found = redis.call('HMGET', LIVE, unpack(ids))
  local at = 8
  for index = 1, #ids do
    local id, token, kind, lesson, pause, took, moment, expires, has_text, has_outbox =
      struct.unpack(SETTLED, ARGV[at])
    local record, packed = ARGV[at + 1], found[index]
    local is_plain = kind == 1 and has_outbox == 0 and packed and not lane_gate and entries[id] == nil
    if not (is_plain and settle_plain(id, token, packed, record)) then
      if entries[id] == nil then entries[id] = packed and lane.read_entry(id, packed) end
      settle(id, token, kind, lesson, pause, took, moment, expires, record, has_text == 1 and ARGV[at + 2],
        has_outbox == 1 and ARGV[at + 2 + has_text])
    end
    at = at + 2 + has_text + has_outbox
  end
  if #histories > 0 then lane.call_many('HSET', P .. 'history', histories) end
  if #histories_gone > 0 then lane.call_many('HDEL', P .. 'history', histories_gone) end
  if #records > 0 then lane.call_many('HSET', P .. 'jobs', records) end
end

-- What is claimed: ids, heads, and which of them have a history.
local claimed, heads, with_history, expired, carried_bytes = {}, {}, {}, {}, 0

local function hand_out(id, token, attempt, generation, expires, has_history, is_past)
  claimed[#claimed + 1] = id
  heads[#heads + 1] = struct.pack(TO_ATTEMPT, id, token, attempt, generation, expires, is_past and 1 or 0)
  if has_history == 1 then with_history[#claimed] = true end
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
  carried_bytes = carried_bytes + e.size
  lane.count(e, -1)
  e.place = RUNNING
  lane.count(e, 1)
  e.attempt = math.min(e.attempt + 1, 65535)
  e.token = lane.next_token()
  e.node = node
  nodes[node] = lane.node_running(node) + 1
  leases[e.id] = lease_end
  lane.touch(e)
  hand_out(e.id, e.token, e.attempt, e.generation, e.expires, e.has_history, is_past)
end

-- Starts a ready job of a tenant that stands behind no gate; whether it was one.
local function start_plain(id, packed, owner)
  local place, priority, generation, has_history, attempt, size, due, expires, _, whose = struct.unpack(FORMAT, packed)
  if place ~= READY or expires <= now or whose ~= owner.name or attempt == 65535 then return false end
  local token = lane.next_token()
  local kind = attempt > 0 and 2 or generation > 0 and 3 or 5
  SIZES[priority * 5 + kind] = SIZES[priority * 5 + kind] - 1
  SIZES[priority * 5 + 1] = SIZES[priority * 5 + 1] + 1
  set(live_set, id, struct.pack(FORMAT, RUNNING, priority, generation, has_history, attempt + 1, size, due, expires,
    token, #whose, whose, #node, node))
  set(leases_set, lease_end, id .. LEASE_TAIL)
  arrivals_gone[priority][#arrivals_gone[priority] + 1] = id
  nodes[node] = nodes[node] + 1
  carried_bytes = carried_bytes + size
  hand_out(id, token, attempt + 1, generation, expires, has_history)
  return true
end

-- Starts what is not too late.
local function start_all(ids, owner, priority, is_past)
  if #ids == 0 then return end
  local found = redis.call('HMGET', LIVE, unpack(ids))
  local is_plain = not lane_gate and not owner.gate
  local started, plain = 0, 0
  for index = 1, #ids do
    local id, packed = ids[index], found[index]
    if is_plain and packed and entries[id] == nil and start_plain(id, packed, owner) then
      if started == 0 then lane.begin_turn(owner, priority) end
      started = started + 1
      plain = plain + 1
    else
      if entries[id] == nil then entries[id] = packed and lane.read_entry(id, packed) end
      local e = entries[id]
      if e and e.place == READY then
        if e.expires <= now then
          expire(e)
        else
          if started == 0 then lane.begin_turn(owner, priority) end
          start(e, is_past)
          started = started + 1
        end
      end
    end
  end
  if plain > 0 then lane.start_of(owner, plain) end
  if started > 0 then lane.serve(owner, priority, started) end
end

local function sooner(one, other)
  if not one then return other end
  if not other then return one end
  return math.min(one, other)
end

local function first_score(key)
  return tonumber(redis.call('ZRANGE', P .. key, 0, 0, 'WITHSCORES')[2])
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
  while #claimed < max and #expired < MOVES_MAX and carried_bytes < CARRIED_MAX do
    local held, till, is_past = lane.lane_hold(node)
    if held then return till end
    local room = policy.concurrency + policy.ahead - nodes[node]
    local ids, owner, priority = lane.take_front(math.min(max - #claimed, room))
    if not ids then
      if is_tired then return now end
      return next_moment()
    end
    start_all(ids, owner, priority, is_past)
  end
  -- Enough for one call; unless all slots are taken there may be more at once.
  if #claimed < max then return now end
  return next_moment()
end

-- The jobs with what they carry.
local function carried()
  local jobs = {}
  if #claimed == 0 then return jobs end
  local found = redis.call('HMGET', P .. 'jobs', unpack(claimed))
  for index = 1, #claimed do
    jobs[#jobs + 1] = heads[index]
    jobs[#jobs + 1] = found[index]
    jobs[#jobs + 1] = with_history[index] and redis.call('HGET', P .. 'history', claimed[index]) or false
  end
  return jobs
end

-- Writes what was listed right away.
local function write_plain()
  if #live_set > 0 then lane.call_many('HSET', LIVE, live_set) end
  if #live_gone > 0 then lane.call_many('HDEL', LIVE, live_gone) end
  if #leases_gone > 0 then lane.call_many('ZREM', P .. 'leases', leases_gone) end
  if #leases_set > 0 then lane.call_many('ZADD', P .. 'leases', leases_set) end
  for priority = 0, 2 do
    local gone = arrivals_gone[priority]
    if #gone > 0 then lane.call_many('ZREM', P .. 'arrivals:' .. priority, gone) end
  end
end

settle_all()
local come_back, lapsed = nil, 0
if max > 0 then
  lapsed = lane.reap()
  come_back = claim()
  if #claimed < max then
    state.hungry = true
  elseif was_hungry then
    -- There may be more, and another node has room for it.
    lane.wake()
  end
  if not state.paused and lane.running_in_all() > #claimed then
    come_back = sooner(come_back, first_score('leases'))
  end
elseif settled > 0 then
  lane.wake()
end
local jobs = carried()
if settled + lapsed + #claimed + #expired > 0 or state.hungry ~= was_hungry or next(entries_touched)
  or next(tenants_touched) then
  write_plain()
  lane.flush()
end
return { now, come_back or -1, stale, expired, jobs }
