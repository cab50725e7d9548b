-- One round of a node at its desk: what it attempted is settled, and it takes its next jobs.
-- ARGV[4] the node, [5] how many jobs at most, [6] the lease, [7] the ids of the jobs that are settled; then for each of
-- these a head, a record, and a code or reason and an outbox where the head says so.
-- Answers: the moment, when to come back (-1: when told), settlements that came too late, expired jobs, and for each job
-- to attempt a head, its record, its history or nothing.

-- Id, token, what becomes of it, lesson, pause, took, a moment, an expiry, whether there is a text, and an outbox.
local SETTLED = '>c16dBBddddBB'
local LESSONS = { 'up', 'down', 'slower', 'nothing' }
-- Id, token, attempt, generation, expiry.
local TO_ATTEMPT = '>c16dHBd'
-- What the jobs of one claim carry, at most: an answer must not take long to send.
local CARRIED_MAX = 8388608

local node, max, lease = ARGV[4], math.min(tonumber(ARGV[5]), MOVES_MAX), tonumber(ARGV[6])
-- Written out once: making a text of a number this long is slow.
local lease_end = string.format('%d', now + lease)

local records, histories, histories_gone, settled, stale = {}, {}, {}, 0, {}

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
    redis.call('HSET', P .. 'why', e.id, text)
    e.place = BLOCKED
    e.token = 0
    e.node = ''
    e.due = now
    state.blocked = state.blocked + 1
    lane.touch(e)
    lane.note_end(e.id)
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

-- Settles what stands at a place of ARGV; where the next one stands.
local function settle(at)
  local id, token, kind, lesson, pause, took, moment, expires, has_text, has_outbox = struct.unpack(SETTLED, ARGV[at])
  local record, text = ARGV[at + 1], ARGV[at + 2]
  local e = lane.entry(id)
  if e and e.place == RUNNING and e.token == token then
    lane.end_attempt(e, LESSONS[lesson], pause, took)
    becomes[kind](e, record, moment, expires, text)
    if has_outbox == 1 then redis.call('RPUSH', P .. 'outbox', ARGV[at + 2 + has_text]) end
    settled = settled + 1
  else
    stale[#stale + 1] = id
  end
  return at + 2 + has_text + has_outbox
end

local function settle_all()
  local ids = {}
  for id in string.gmatch(ARGV[7], '................') do ids[#ids + 1] = id end
  if #ids == 0 then return end
  lane.preload(ids)
  local at = 8
  for _ = 1, #ids do at = settle(at) end
  if #histories > 0 then lane.call_many('HSET', P .. 'history', histories) end
  if #histories_gone > 0 then lane.call_many('HDEL', P .. 'history', histories_gone) end
  if #records > 0 then lane.call_many('HSET', P .. 'jobs', records) end
end

local claimed, expired, carried_bytes = {}, {}, 0

local function expire(e)
  expired[#expired + 1] = { e.id, e.tenant, e.priority, lane.state_of(e) }
  lane.unlist(e)
  lane.count(e, -1)
  lane.forget(e)
  lane.drop(e.id, 'dropped', 'ttl_expired: it was still waiting when its time to live ended')
end

local function start(e)
  lane.unlist(e)
  lane.start_of(lane.enter(e.tenant))
  lane.gate_start(lane_gate)
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
  claimed[#claimed + 1] = e
end

-- Starts what is not too late; how many of one priority those were.
local function start_all(ids, owner)
  lane.preload(ids)
  local started, priority = 0, nil
  for _, id in ipairs(ids) do
    local e = lane.entry(id)
    if e and e.place == READY then
      if e.expires <= now then
        expire(e)
      else
        if started == 0 then lane.begin_turn(owner, e.priority) end
        start(e)
        started = started + 1
        priority = e.priority
      end
    end
  end
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
    local held, till = lane.lane_hold(node)
    if held then return till end
    local ids, owner = lane.take_front(math.min(max - #claimed, policy.concurrency - lane.node_running(node)))
    if not ids then
      if is_tired then return now end
      return next_moment()
    end
    start_all(ids, owner)
  end
  -- Enough for one call; unless all slots are taken there may be more at once.
  if #claimed < max then return now end
  return next_moment()
end

-- The jobs with what they carry.
local function carried()
  local ids, jobs = {}, {}
  for index, e in ipairs(claimed) do ids[index] = e.id end
  if #ids == 0 then return jobs end
  local found = redis.call('HMGET', P .. 'jobs', unpack(ids))
  for index, e in ipairs(claimed) do
    jobs[#jobs + 1] = struct.pack(TO_ATTEMPT, e.id, e.token, e.attempt, e.generation, e.expires)
    jobs[#jobs + 1] = found[index]
    jobs[#jobs + 1] = e.has_history == 1 and redis.call('HGET', P .. 'history', e.id)
  end
  return jobs
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
  if not state.paused and lane.running_in_all() > #claimed then come_back = sooner(come_back, first_score('leases')) end
elseif settled > 0 then
  lane.wake()
end
local jobs = carried()
if settled + lapsed + #claimed + #expired > 0 or state.hungry ~= was_hungry or next(entries_touched)
  or next(tenants_touched) then
  lane.flush()
end
return { now, come_back or -1, stale, expired, jobs }
