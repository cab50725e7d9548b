-- What operators do to a lane. ARGV[4] names it, the rest is its own. Answers `ok`, or where the job stands instead.

local id = ARGV[5]

-- A blocked job is nowhere but in the count and with its reason.
local function let_go(e)
  state.blocked = state.blocked - 1
  redis.call('HDEL', P .. 'why', e.id)
end

-- Puts a job back that the lane had accepted before; no limit applies.
local function put_back(e)
  e.due = now
  e.attempt = 0
  e.token = 0
  e.node = ''
  lane.insert(e)
  lane.wake()
end

local change = {
  pause = function()
    state.paused = true
    redis.call('PUBLISH', policy.news, 'paused ' .. policy.lane)
  end,

  resume = function()
    state.paused = nil
    state.hungry = true
    lane.wake()
  end,

  -- tenant, weight
  weigh = function()
    local t = lane.enter(ARGV[5])
    t.weight = math.max(tonumber(ARGV[6]), 1)
    tenants_touched[t.name] = true
  end,

  -- For each tenant that may have a throttle of its own: tenant, how many starts (0: none), in which time
  throttle = function()
    for at = 5, #ARGV, 3 do lane.set_throttle(ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])) end
    lane.wake()
  end,

  -- id, reason
  cancel = function()
    local e = lane.entry(id)
    if not e then return 'gone' end
    if e.place == RUNNING then return lane.state_of(e) end
    if e.place == BLOCKED then
      let_go(e)
      lane.forget(e)
    else
      lane.take_out(e)
    end
    lane.drop(id, 'cancelled', ARGV[6])
  end,

  -- id, expiry, record or nothing
  unblock = function()
    local e = lane.entry(id)
    if not e then return 'gone' end
    if e.place ~= BLOCKED then return lane.state_of(e) end
    let_go(e)
    if ARGV[7] ~= '' then
      redis.call('HSET', P .. 'jobs', id, ARGV[7])
      e.size = #ARGV[7]
    end
    e.expires = lane.here(ARGV[6])
    put_back(e)
  end,

  -- id, the generation it had, expiry, record
  replay = function()
    local mark = lane.read_mark(id)
    if not mark or mark.status ~= PENDING or mark.generation ~= tonumber(ARGV[6]) then return 'gone' end
    if lane.entry(id) then return 'gone' end
    mark.status = REPLAYING
    mark.generation = mark.generation + 1
    lane.write_mark(id, mark)
    redis.call('HSET', P .. 'jobs', id, ARGV[8])
    redis.call('ZADD', P .. 'index', 0, id)
    put_back({ id = id, tenant = mark.tenant, priority = tonumber(ARGV[9]), generation = mark.generation,
      has_history = 0, size = #ARGV[8], expires = lane.here(ARGV[7]) })
  end,

  -- id, reason
  discard = function()
    local mark = lane.read_mark(id)
    if not mark or mark.status ~= PENDING then return 'gone' end
    mark.status = DISCARDED
    mark.discarded = ARGV[6]
    lane.write_mark(id, mark)
  end,

  -- Somebody waits for the job, for a while; those who no longer do are forgotten. id, how long
  wait = function()
    redis.call('ZADD', P .. 'waited', now + tonumber(ARGV[6]), id)
    redis.call('ZREMRANGEBYSCORE', P .. 'waited', '-inf', now)
  end,

  -- A node that stops gives back what it could not finish. id, token, and so on
  release = function()
    for at = 5, #ARGV, 2 do
      local e = lane.entry(ARGV[at])
      if e and e.place == RUNNING and e.token == tonumber(ARGV[at + 1]) then lane.give_back(e) end
    end
    lane.wake()
  end,

  -- A job whose record cannot be read waits for an operator. id, token, reason
  set_aside = function()
    local e = lane.entry(id)
    if not (e and e.place == RUNNING and e.token == tonumber(ARGV[6])) then return 'gone' end
    lane.end_attempt(e, 'nothing', -1, 0)
    lane.block(e, ARGV[7])
  end,
}

local refused = change[ARGV[4]]()
if not refused then lane.flush() end
return refused or 'ok'
