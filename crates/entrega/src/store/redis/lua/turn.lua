-- One round of a node at its desk: what it attempted is settled, and it takes its next jobs.
-- ARGV[4] the node, [5] how many jobs at most, [6] the lease, [7] id and token of each job that was delivered where no
-- gate learns from it, then the record of each. After these the ids of the other jobs that are settled, and for each of
-- them a head, a record, and a code or reason and an outbox where the head says so.
-- Answers: the moment, when to come back (-1: when told), settlements that came too late, expired jobs, each job to
-- attempt with its entry, and what these carry, if they are few: their records, and their histories. What many carry the
-- node asks for, because whatever passes through a script costs the server several times as much.

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
local LIVE, SIZES = P .. 'live', state.sizes
local sub, unpack_struct, pack_struct = string.sub, struct.unpack, struct.pack
local gone, gone_count, arrivals_gone = {}, 0, { [0] = {}, {}, {} }
-- Read once; from here on the count is kept in `nodes`.
lane.node_running(node)

-- What entries begin with, up to their attempts (see `FORMAT`); read once for all that begin alike.
local beginnings = {}
local function beginning(packed)
  local text = sub(packed, 1, 6)
  local known = beginnings[text]
  if not known then
    local place, priority, generation, has_history, attempt = unpack_struct('>BBBBH', text)
    local kind = attempt > 0 and 2 or generation > 0 and 3 or 5
    known = { place = place, priority = priority, generation = generation, has_history = has_history == 1,
      attempt = attempt, running = priority * 5 + 1, waiting = priority * 5 + kind,
      started = pack_struct('>BBBBH', RUNNING, priority, generation, has_history, math.min(attempt + 1, 65535)) }
    beginnings[text] = known
  end
  return known
end

-- What entries end with: the tenant, and the node that attempts it.
local function ending(name, runner) return pack_struct('>Bc0Bc0', #name, name, #runner, runner) end

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

-- The tenant of a job that this node attempts and that stands behind no gate; `false` for others.
local ours = {}
local function our_tenant(packed)
  local text = sub(packed, 35)
  local t = ours[text]
  if t == nil then
    local name, runner = unpack_struct('>Bc0Bc0', text)
    t = runner == node and lane.enter(name) or false
    if t and t.gate then t = false end
    if t then tenants_touched[name] = true end
    ours[text] = t
  end
  return t
end

-- Settles a job that was delivered and stands behind no gate; whether it was one.
local function settle_plain(id, token, packed, record)
  local begins = beginning(packed)
  if begins.place ~= RUNNING or begins.generation > 0 or sub(packed, 27, 34) ~= token then return false end
  local t = our_tenant(packed)
  if not t then return false end
  t.running = t.running - 1
  if t.parked == -1 then lane.unpark(t) end
  nodes[node] = nodes[node] - 1
  SIZES[begins.running] = SIZES[begins.running] - 1
  gone_count = gone_count + 1
  gone[gone_count] = id
  local place = 2 * gone_count
  records[place - 1] = id
  records[place] = record
  if begins.has_history then histories_gone[#histories_gone + 1] = id end
  lane.note_end(id)
  entries[id] = false
  settled = settled + 1
  return true
end

-- The jobs that were delivered where no gate learns from it. Gives where the rest begins.
local function settle_delivered()
  local delivered, ids = ARGV[7], {}
  local count = #delivered / LEASED
  for index = 1, count do ids[index] = sub(delivered, LEASED * index - 23, LEASED * index - 8) end
  if count == 0 then return 8 end
  local found, slow = redis.call('HMGET', LIVE, unpack(ids)), {}
  for index = 1, count do
    local id, packed, token = ids[index], found[index], sub(delivered, LEASED * index - 7, LEASED * index)
    if not (packed and not lane_gate and entries[id] == nil and settle_plain(id, token, packed, ARGV[7 + index])) then
      if entries[id] == nil then entries[id] = packed and lane.read_entry(id, packed) end
      slow[#slow + 1] = index
    end
  end
  for _, index in ipairs(slow) do
    local token = unpack_struct('>d', delivered, LEASED * index - 7)
    settle(ids[index], token, 1, 1, -1, 0, now, FOREVER, ARGV[7 + index])
  end
  return 8 + count
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

-- What is claimed: each job with its entry, and with its token.
local claimed, handed, leased, carried_bytes, expired = 0, {}, {}, 0, {}

local function hand_out(id, token, packed, size)
  claimed = claimed + 1
  local place = 2 * claimed
  handed[place - 1] = id
  handed[place] = packed
  leased[place - 1] = id
  leased[place] = token
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
  e.token = lane.next_token()
  e.node = node
  nodes[node] = lane.node_running(node) + 1
  hand_out(e.id, pack_struct('>d', e.token), lane.pack_entry(e), e.size)
  entries_touched[e.id] = nil
end

-- How the entries of a tenant's jobs end before they start, and after.
local endings = {}
local function endings_of(name)
  local known = endings[name]
  if not known then
    known = { waiting = ending(name, ''), running = ending(name, node) }
    endings[name] = known
  end
  return known
end

-- Starts a ready job of a tenant that stands behind no gate; whether it was one.
local function start_plain(id, packed, ends)
  local begins = beginning(packed)
  if begins.place ~= READY or begins.attempt == 65535 or sub(packed, 35) ~= ends.waiting then return false end
  local size, _, expires = unpack_struct('>I4dd', packed, 7)
  if expires <= now then return false end
  local token = pack_struct('>d', lane.next_token())
  SIZES[begins.waiting] = SIZES[begins.waiting] - 1
  SIZES[begins.running] = SIZES[begins.running] + 1
  local arrived = arrivals_gone[begins.priority]
  arrived[#arrived + 1] = id
  nodes[node] = nodes[node] + 1
  hand_out(id, token, begins.started .. sub(packed, 7, 26) .. token .. ends.running, size)
  return true
end

-- Starts what is not too late.
local function start_all(ids, owner, priority, is_past)
  if #ids == 0 then return end
  local found = redis.call('HMGET', LIVE, unpack(ids))
  local ends = not lane_gate and not owner.gate and endings_of(owner.name)
  local started, plain = 0, 0
  for index = 1, #ids do
    local id, packed = ids[index], found[index]
    if ends and packed and entries[id] == nil and start_plain(id, packed, ends) then
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
    local ids, owner, priority = lane.take_front(math.min(max - claimed, room))
    if not ids then
      if is_tired then return now end
      return next_moment()
    end
    start_all(ids, owner, priority, is_past)
  end
  -- Enough for one call; unless all slots are taken there may be more at once.
  if claimed < max then return now end
  return next_moment()
end

local function carried()
  if claimed == 0 or claimed > FEW then return {} end
  local ids = {}
  for index = 1, claimed do ids[index] = handed[2 * index - 1] end
  return { redis.call('HMGET', P .. 'jobs', unpack(ids)), redis.call('HMGET', P .. 'history', unpack(ids)) }
end

-- Writes what was listed right away.
local function write_plain()
  if gone_count > 0 then lane.call_many('HDEL', LIVE, gone) end
  if claimed > 0 then
    lane.call_many('HSET', LIVE, handed)
    redis.call('ZADD', P .. 'leases', now + lease, table.concat(leased))
  end
  for priority = 0, 2 do
    local started = arrivals_gone[priority]
    if #started > 0 then lane.call_many('ZREM', P .. 'arrivals:' .. priority, started) end
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
return { now, come_back or -1, stale, expired, handed, carried() }
