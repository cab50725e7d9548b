-- The jobs of a lane as the rules see them: small, without what they carry.

local LIVE = P .. 'live'
local FORMAT = '>BBBBHI4dddBc0Bc0'
local entries, entries_touched = {}, {}

function lane.read_entry(id, packed)
  local place, priority, generation, has_history, attempt, size, due, expires, token, tenant, node =
    struct.unpack(FORMAT, packed)
  local is_past = place == PAST
  return { id = id, place = is_past and RUNNING or place, is_past = is_past, priority = priority, generation = generation, has_history = has_history,
    attempt = attempt, size = size, due = due, expires = expires, token = token, tenant = tenant, node = node }
end

function lane.pack_entry(e)
  return struct.pack(FORMAT, e.is_past and PAST or e.place, e.priority, e.generation, e.has_history, e.attempt, e.size,
    e.due, e.expires, e.token, #e.tenant, e.tenant, #e.node, e.node)
end

function lane.entry(id)
  local e = entries[id]
  if e == nil then
    local packed = redis.call('HGET', LIVE, id)
    e = packed and lane.read_entry(id, packed)
    entries[id] = e
  end
  return e
end

-- Reads many at once.
function lane.preload(ids)
  for first = 1, #ids, CHUNK do
    local last = math.min(first + CHUNK - 1, #ids)
    local found = redis.call('HMGET', LIVE, unpack(ids, first, last))
    for offset = 1, last - first + 1 do
      local id = ids[first + offset - 1]
      if entries[id] == nil then entries[id] = found[offset] and lane.read_entry(id, found[offset]) end
    end
  end
end

function lane.touch(e) entries_touched[e.id] = true end

function lane.forget(e)
  entries[e.id] = false
  entries_touched[e.id] = true
end

function lane.state_of(e)
  if e.place == BLOCKED then return 'blocked' end
  if e.place == RUNNING then return 'running' end
  if e.attempt > 0 then return 'retry_wait' end
  if e.generation > 0 then return 'replaying' end
  if e.place == DELAYED or state.paused then return 'idle' end
  return 'queued'
end

-- What is to be written to a sorted set: id -> score, or false to take it out.
local arrivals = { [0] = {}, {}, {} }

function lane.write_set(key, changes)
  local add, remove = {}, {}
  for id, score in pairs(changes) do
    if score then
      add[#add + 1] = score
      add[#add + 1] = id
    else
      remove[#remove + 1] = id
    end
  end
  if #remove > 0 then lane.call_many('ZREM', key, remove) end
  if #add > 0 then lane.call_many('ZADD', key, add) end
end

function lane.write_arrivals(priority)
  lane.write_set(P .. 'arrivals:' .. priority, arrivals[priority])
  arrivals[priority] = {}
end

function lane.arrive_last(e)
  state.seq = state.seq + 1
  arrivals[e.priority][e.id] = state.seq
end

-- A retry is older than whatever arrived since: it is the last to be pushed out.
function lane.arrive_first(e)
  state.front = state.front - 1
  arrivals[e.priority][e.id] = state.front
end

function lane.unlist(e) arrivals[e.priority][e.id] = false end
