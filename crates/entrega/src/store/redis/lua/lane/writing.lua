-- Everything that was changed, written once.

-- Calls whoever sleeps: there may be something to claim.
local function wake()
  if state.hungry then
    state.hungry = nil
    redis.call('PUBLISH', policy.news, 'wake ' .. policy.lane)
  end
end

-- Tells whoever waits for a job on any node.
local function tell_ended()
  if ended_count == 0 or redis.call('EXISTS', P .. 'waited') == 0 then return end
  for index = 1, ended_count do
    if redis.call('ZREM', P .. 'waited', ended[index]) == 1 then
      redis.call('PUBLISH', policy.news, 'ended ' .. ended[index])
    end
  end
end

local function write_entries()
  local set, gone = {}, {}
  for id in pairs(entries_touched) do
    local e = entries[id]
    if e then
      set[#set + 1] = id
      set[#set + 1] = struct.pack(FORMAT, e.place, e.priority, e.generation, e.has_history, e.attempt, e.size, e.due,
        e.expires, e.token, #e.tenant, e.tenant, #e.node, e.node)
    else
      gone[#gone + 1] = id
    end
  end
  if #set > 0 then call_many('HSET', P .. 'live', set) end
  if #gone > 0 then call_many('HDEL', P .. 'live', gone) end
end

local function write_tenants()
  local set = {}
  for name in pairs(tenants_touched) do
    local t = tenants[name]
    set[#set + 1] = name
    set[#set + 1] = cmsgpack.pack({ number = t.number, parked = t.parked, running = t.running, weight = t.weight,
      round = t.round, processed = t.processed, last = t.last, streak = t.streak, ring = t.ring, kept = t.kept })
  end
  if #set > 0 then call_many('HSET', P .. 'tenants', set) end
end

local function flush()
  write_entries()
  write_tenants()
  for _, q in pairs(queues) do write_queue(q) end
  for priority = 0, 2 do write_arrivals(priority) end
  write_set(P .. 'leases', leases)
  for node, running in pairs(nodes) do
    if running > 0 then
      redis.call('HSET', P .. 'nodes', node, running)
    else
      redis.call('HDEL', P .. 'nodes', node)
    end
  end
  tell_ended()
  redis.call('SET', P .. 'state', cmsgpack.pack(state))
end
