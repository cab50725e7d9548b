-- Takes new jobs. ARGV[4] is `new`, or `sure` for jobs that must get in and may have come before (see `Verb::PutIn`);
-- then for each job: id, tenant, priority, due, expires, record, whether it is done as it is taken, how many keys make it
-- happen once, and for each of those the key it is remembered under, the hash of its request, when it is forgotten.
-- Answers one row each: `accepted`, `full`, `duplicate`, `other_request`, the id under which it was taken before, or
-- what was pushed out: id, tenant, priority, state.

local FIELDS, KEY_FIELDS = 8, 3
local is_sure = ARGV[4] == 'sure'

-- Where the keys of a job begin, and where they end.
local function keys_of(at)
  return at + FIELDS, at + FIELDS + KEY_FIELDS * tonumber(ARGV[at + 7]) - 1
end

local ids, places = {}, {}
local place = 5
while place <= #ARGV do
  ids[#ids + 1] = ARGV[place]
  places[#places + 1] = place
  local _, last = keys_of(place)
  place = last + 1
end
lane.preload(ids)

local staged = {}

-- The newest of the least urgent kind that a newcomer may push out.
local function victim(newcomer)
  if not policy.preempt then return nil end
  for priority = 2, newcomer + 1, -1 do
    for at = #staged, 1, -1 do
      local e = staged[at]
      if not e.is_gone and e.priority == priority then return e end
    end
    lane.write_arrivals(priority)
    local id = redis.call('ZREVRANGE', P .. 'arrivals:' .. priority, 0, 0)[1]
    if id then return lane.entry(id) end
  end
  return nil
end

local function push_out(e)
  local left = { e.id, e.tenant, e.priority, lane.state_of(e) }
  if e.is_staged then
    e.is_gone = true
    lane.count(e, -1)
    entries[e.id] = false
  else
    lane.take_out(e)
  end
  lane.drop(e.id, 'dropped', 'preempted: the lane was full and a more urgent job came')
  return left
end

-- A job that must get in may have come, run and ended before.
local function came_before(id)
  return redis.call('HEXISTS', P .. 'jobs', id) == 1 or redis.call('HEXISTS', P .. 'mark', id) == 1
end

-- What was answered to the first of its keys that is known.
local function before(at)
  local first, last = keys_of(at)
  for key = first, last, KEY_FIELDS do
    local kept = redis.call('GET', ARGV[key])
    kept = kept and cmsgpack.unpack(kept)
    if kept and kept.expires > now then return kept.request == ARGV[key + 1] and { kept.id } or 'other_request' end
  end
  return nil
end

local function remember(at)
  local first, last = keys_of(at)
  for key = first, last, KEY_FIELDS do
    local expires = lane.here(ARGV[key + 2])
    local kept = cmsgpack.pack({ id = ARGV[at], request = ARGV[key + 1], expires = expires })
    redis.call('SET', ARGV[key], kept, 'PX', math.max(math.ceil((expires - now) / 1000), 1))
  end
end

local answers, records, index = {}, {}, {}
for _, at in ipairs(places) do
  local id, priority = ARGV[at], tonumber(ARGV[at + 2])
  local answer, is_taken = before(at), false
  if answer then
    -- Nothing happens twice.
  elseif entries[id] or (is_sure and came_before(id)) then
    answer = 'duplicate'
  elseif ARGV[at + 6] == '1' then
    -- Its answer is known: it needs no place in the lane.
    remember(at)
    answer = 'accepted'
    records[#records + 1] = id
    records[#records + 1] = ARGV[at + 5]
    index[#index + 1] = 0
    index[#index + 1] = id
  elseif not is_sure and lane.waiting_in_all() >= policy.capacity then
    local e = victim(priority)
    is_taken = e ~= nil
    answer = e and push_out(e) or 'full'
  else
    is_taken = true
    answer = 'accepted'
  end
  answers[#answers + 1] = answer
  if is_taken then
    remember(at)
    local e = { id = id, tenant = ARGV[at + 1], priority = priority, due = lane.here(ARGV[at + 3]),
      expires = lane.here(ARGV[at + 4]), size = #ARGV[at + 5], attempt = 0, generation = 0, has_history = 0, token = 0,
      node = '', place = READY, is_staged = true }
    lane.enter(e.tenant)
    entries[id] = e
    lane.count(e, 1)
    staged[#staged + 1] = e
    records[#records + 1] = id
    records[#records + 1] = ARGV[at + 5]
    index[#index + 1] = 0
    index[#index + 1] = id
  end
end

for _, e in ipairs(staged) do
  if not e.is_gone then
    e.is_staged = nil
    lane.count(e, -1)
    lane.arrive_last(e)
    lane.settle_in(e)
  end
end
if #records > 0 then
  lane.call_many('HSET', P .. 'jobs', records)
  lane.call_many('ZADD', P .. 'index', index)
  lane.wake()
  lane.flush()
end
return answers
