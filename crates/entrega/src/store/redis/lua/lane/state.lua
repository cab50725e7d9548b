-- What a lane knows as a whole, and how many jobs are where.

local state = redis.call('GET', P .. 'state')
if state then
  state = cmsgpack.unpack(state)
else
  state = { seq = 0, front = 0, token = 0, rounds = 0, left = { 0, 0, 0 }, tenants = 0, blocked = 0, dead = 0,
    sizes = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, gate = {} }
end
local was_hungry = state.hungry

local function kind_of(e)
  if e.place == RUNNING then return 1 end
  if e.attempt > 0 then return 2 end
  if e.generation > 0 then return 3 end
  if e.place == DELAYED then return 4 end
  return 5
end

local function count(e, by)
  local index = e.priority * 5 + kind_of(e)
  state.sizes[index] = state.sizes[index] + by
end

local function in_kinds(first, last)
  local sum = 0
  for priority = 0, 2 do
    for kind = first, last do sum = sum + state.sizes[priority * 5 + kind] end
  end
  return sum
end

local function running_in_all() return in_kinds(1, 1) end
local function waiting_in_all() return in_kinds(2, 5) end
