-- Everything that was changed, written once.

-- Calls whoever sleeps: there may be something to claim.
function lane.wake()
  if state.hungry then
    state.hungry = nil
    redis.call('PUBLISH', policy.news, 'wake ' .. policy.lane)
  end
end

-- Tells whoever waits for a job on any node.
function lane.tell_ended()
  if ended_count == 0 or not lane.has_waiters() then return end
  for index = 1, ended_count do
    if redis.call('ZREM', P .. 'waited', ended[index]) == 1 then
      redis.call('PUBLISH', policy.news, 'ended ' .. ended[index])
    end
  end
end

function lane.write_entries()
  local set, gone = {}, {}
  for id in pairs(entries_touched) do
    local e = entries[id]
    if e then
      set[#set + 1] = id
      set[#set + 1] = lane.pack_entry(e)
    else
      gone[#gone + 1] = id
    end
  end
  if #set > 0 then lane.call_many('HSET', LIVE, set) end
  if #gone > 0 then lane.call_many('HDEL', LIVE, gone) end
end

function lane.write_tenants()
  local set = {}
  for name in pairs(tenants_touched) do
    local t = tenants[name]
    set[#set + 1] = name
    local kept = next(t.kept) and cmsgpack.pack(t.kept) or ''
    local ring = t.ring
    set[#set + 1] = struct.pack(TENANT, t.number, t.parked, t.running, t.weight, t.round, t.processed, t.last,
      t.streak, ring[1] and 1 or 0, ring[2] and 1 or 0, ring[3] and 1 or 0, t.ready[1], t.ready[2], t.ready[3]) .. kept
  end
  if #set > 0 then lane.call_many('HSET', P .. 'tenants', set) end
end

function lane.flush()
  lane.write_entries()
  lane.write_tenants()
  for key in pairs(pushed) do lane.write_queue(key) end
  for key in pairs(fronts) do lane.write_front(key) end
  for priority = 0, 2 do lane.write_ring(priority) end
  for priority = 0, 2 do lane.write_arrivals(priority) end
  for node, running in pairs(nodes) do
    if running > 0 then
      redis.call('HSET', P .. 'nodes', node, running)
    else
      redis.call('HDEL', P .. 'nodes', node)
    end
  end
  lane.tell_ended()
  redis.call('SET', P .. 'state', cmsgpack.pack(state))
end
