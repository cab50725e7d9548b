-- The jobs of a lane as the rules see them: small, without what they carry.

local FORMAT = '>BBBBHI4dddBc0Bc0'
local entries, entries_touched = {}, {}

local function read_entry(id, packed)
  local place, priority, generation, has_history, attempt, size, due, expires, token, tenant, node =
    struct.unpack(FORMAT, packed)
  return { id = id, place = place, priority = priority, generation = generation, has_history = has_history,
    attempt = attempt, size = size, due = due, expires = expires, token = token, tenant = tenant, node = node }
end

local function entry(id)
  local e = entries[id]
  if e == nil then
    local packed = redis.call('HGET', P .. 'live', id)
    e = packed and read_entry(id, packed)
    entries[id] = e
  end
  return e
end

-- Reads many at once.
local function preload(ids)
  for first = 1, #ids, CHUNK do
    local last = math.min(first + CHUNK - 1, #ids)
    local found = redis.call('HMGET', P .. 'live', unpack(ids, first, last))
    for offset = 1, last - first + 1 do
      local id = ids[first + offset - 1]
      if entries[id] == nil then entries[id] = found[offset] and read_entry(id, found[offset]) end
    end
  end
end

local function touch(e) entries_touched[e.id] = true end

local function forget(e)
  entries[e.id] = false
  entries_touched[e.id] = true
end

local function state_of(e)
  if e.place == BLOCKED then return 'blocked' end
  if e.place == RUNNING then return 'running' end
  if e.attempt > 0 then return 'retry_wait' end
  if e.generation > 0 then return 'replaying' end
  if e.place == DELAYED or state.paused then return 'idle' end
  return 'queued'
end

-- What is to be written to a sorted set: id -> score, or false to take it out.
local arrivals = { [0] = {}, {}, {} }
local leases = {}

local function write_set(key, changes)
  local add, remove = {}, {}
  for id, score in pairs(changes) do
    if score then
      add[#add + 1] = score
      add[#add + 1] = id
    else
      remove[#remove + 1] = id
    end
  end
  if #remove > 0 then call_many('ZREM', key, remove) end
  if #add > 0 then call_many('ZADD', key, add) end
end

local function write_arrivals(priority)
  write_set(P .. 'arrivals:' .. priority, arrivals[priority])
  arrivals[priority] = {}
end

local function arrive_last(e)
  state.seq = state.seq + 1
  arrivals[e.priority][e.id] = state.seq
end

-- A retry is older than whatever arrived since: it is the last to be pushed out.
local function arrive_first(e)
  state.front = state.front - 1
  arrivals[e.priority][e.id] = state.front
end

local function unlist(e) arrivals[e.priority][e.id] = false end
