-- One round of a node at its desk: what it attempted is settled, and it takes its next jobs.
-- ARGV[4] the node, [5] how many jobs at most, [6] the lease; then eleven per settlement:
-- id, token, what becomes of it, lesson, pause, took, a moment, record, code or reason, an expiry, its outbox.
-- Answers: the moment, when to come back (-1: when told), settlements that came too late, expired jobs, jobs to attempt.

local FIELDS = 11
local node, max, lease = ARGV[4], math.min(tonumber(ARGV[5]), MOVES_MAX), tonumber(ARGV[6])
-- What the jobs of one claim carry, at most: an answer must not take long to send.
local CARRIED_MAX = 8388608

local records, histories, histories_gone, settled, stale = {}, {}, {}, 0, {}

local function set(list, id, bytes)
  list[#list + 1] = id
  list[#list + 1] = bytes
end

local becomes = {
  done = function(e, at)
    if e.generation > 0 then change_status(e.id, REPLAYED) end
    set(records, e.id, ARGV[at + 7])
    if e.has_history == 1 then histories_gone[#histories_gone + 1] = e.id end
    forget(e)
    note_end(e.id)
  end,
  retry = function(e, at)
    e.has_history = 1
    set(histories, e.id, ARGV[at + 7])
    retry_at(e, here(ARGV[at + 6]))
  end,
  blocked = function(e, at)
    e.has_history = 1
    set(histories, e.id, ARGV[at + 7])
    redis.call('HSET', P .. 'why', e.id, ARGV[at + 8])
    e.place = BLOCKED
    e.token = 0
    e.node = ''
    e.due = now
    state.blocked = state.blocked + 1
    touch(e)
    note_end(e.id)
  end,
  dead = function(e, at)
    bury(e.id, ARGV[at + 7], { status = PENDING, generation = e.generation, moved = tonumber(ARGV[at + 6]),
      expires = tonumber(ARGV[at + 9]), tenant = e.tenant, code = ARGV[at + 8] })
    if e.has_history == 1 then histories_gone[#histories_gone + 1] = e.id end
    forget(e)
    note_end(e.id)
  end,
}

local function settle_all()
  local ids = {}
  for at = 7, #ARGV, FIELDS do ids[#ids + 1] = ARGV[at] end
  if #ids == 0 then return end
  preload(ids)
  for at = 7, #ARGV, FIELDS do
    local e = entry(ARGV[at])
    if e and e.place == RUNNING and e.token == tonumber(ARGV[at + 1]) then
      end_attempt(e, ARGV[at + 3], tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]))
      becomes[ARGV[at + 2]](e, at)
      if ARGV[at + 10] ~= '' then redis.call('RPUSH', P .. 'outbox', ARGV[at + 10]) end
      settled = settled + 1
    else
      stale[#stale + 1] = ARGV[at]
    end
  end
  if #histories > 0 then call_many('HSET', P .. 'history', histories) end
  if #histories_gone > 0 then call_many('HDEL', P .. 'history', histories_gone) end
  if #records > 0 then call_many('HSET', P .. 'jobs', records) end
end

local claimed, expired, carried_bytes = {}, {}, 0

local function expire(e)
  expired[#expired + 1] = { e.id, e.tenant, e.priority, state_of(e) }
  unlist(e)
  count(e, -1)
  forget(e)
  drop(e.id, 'dropped', 'ttl_expired: it was still waiting when its time to live ended')
end

local function start(e, owner)
  unlist(e)
  serve(enter(e.tenant), owner, e.priority)
  carried_bytes = carried_bytes + e.size
  gate_start(lane_gate)
  count(e, -1)
  e.place = RUNNING
  count(e, 1)
  e.attempt = math.min(e.attempt + 1, 65535)
  e.token = next_token()
  e.node = node
  nodes[node] = node_running(node) + 1
  leases[e.id] = now + lease
  touch(e)
  claimed[#claimed + 1] = e
end

local function sooner(one, other)
  if not one then return other end
  if not other then return one end
  return math.min(one, other)
end

local function first_score(key)
  return tonumber(redis.call('ZRANGE', P .. key, 0, 0, 'WITHSCORES')[2])
end

-- Takes what may go; says when to come back, `nil` for "when told".
local function claim()
  release_due()
  local rules = redis.sha1hex(ARGV[3])
  if state.rules == rules then
    unpark_due()
  else
    state.rules = rules
    unpark_all()
  end
  while #claimed < max and #expired < MOVES_MAX and carried_bytes < CARRIED_MAX do
    local held, till = lane_hold(node)
    if held then return till end
    local id, owner = take_front()
    if not id then
      if is_tired then return now end
      return sooner(first_score('delays'), first_score('parked'))
    end
    local e = entry(id)
    if e and e.place == READY then
      if e.expires <= now then
        expire(e)
      else
        start(e, owner)
      end
    end
  end
  -- Enough for one call; unless all slots are taken there may be more at once.
  if #claimed < max then return now end
  return sooner(first_score('delays'), first_score('parked'))
end

-- The jobs with what they carry: id, token, attempt, generation, expiry, record, history.
local function carried()
  local ids, jobs = {}, {}
  for index, e in ipairs(claimed) do ids[index] = e.id end
  if #ids == 0 then return jobs end
  local found = redis.call('HMGET', P .. 'jobs', unpack(ids))
  for index, e in ipairs(claimed) do
    local history = e.has_history == 1 and redis.call('HGET', P .. 'history', e.id)
    jobs[index] = { e.id, e.token, e.attempt, e.generation, e.expires, found[index], history }
  end
  return jobs
end

settle_all()
local come_back, lapsed = nil, 0
if max > 0 then
  lapsed = reap()
  come_back = claim()
  if #claimed < max then
    state.hungry = true
  elseif was_hungry then
    -- There may be more, and another node has room for it.
    wake()
  end
  if not state.paused then come_back = sooner(come_back, first_score('leases')) end
elseif settled > 0 then
  wake()
end
local jobs = carried()
if settled + lapsed + #claimed + #expired > 0 or state.hungry ~= was_hungry or next(entries_touched)
  or next(tenants_touched) then
  flush()
end
return { now, come_back or -1, stale, expired, jobs }
