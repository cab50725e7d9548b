-- What a lane knows as a whole, and how many jobs are where.

local state = redis.call('GET', P .. 'state')
if state then
  state = cmsgpack.unpack(state)
else
  state = { seq = 0, front = 0, token = 0, rounds = 0, left = { 0, 0, 0 }, tenants = 0, blocked = 0, dead = 0,
    delayed = 0, parked = 0, sizes = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, gate = {} }
end
local was_hungry = state.hungry

function lane.kind_of(e)
  if e.place == RUNNING then return 1 end
  if e.attempt > 0 then return 2 end
  if e.generation > 0 then return 3 end
  if e.place == DELAYED then return 4 end
  return 5
end

function lane.count(e, by)
  local index = e.priority * 5 + lane.kind_of(e)
  state.sizes[index] = state.sizes[index] + by
end

function lane.in_kinds(first, last)
  local sum = 0
  for priority = 0, 2 do
    for kind = first, last do sum = sum + state.sizes[priority * 5 + kind] end
  end
  return sum
end

function lane.running_in_all() return lane.in_kinds(1, 1) end
function lane.waiting_in_all() return lane.in_kinds(2, 5) end
