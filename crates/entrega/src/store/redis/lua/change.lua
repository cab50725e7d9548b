-- What operators do to a lane. ARGV[4] names it, the rest is its own. Answers `ok`, or where the job stands instead.

local id = ARGV[5]

-- Puts a job back that the lane had accepted before; no limit applies.
local function put_back(e)
  e.due = now
  e.attempt = 0
  e.token = 0
  e.node = ''
  insert(e)
  wake()
end

local change = {
  pause = function() state.paused = true end,

  resume = function()
    state.paused = nil
    state.hungry = true
    wake()
  end,

  -- tenant, weight
  weigh = function()
    local t = enter(ARGV[5])
    t.weight = math.max(tonumber(ARGV[6]), 1)
    tenants_touched[t.name] = true
  end,

  -- id, reason
  cancel = function()
    local e = entry(id)
    if not e then return 'gone' end
    if e.place == RUNNING or e.place == BLOCKED then return state_of(e) end
    take_out(e)
    drop(id, 'cancelled', ARGV[6])
  end,

  -- id, expiry, record or nothing
  unblock = function()
    local e = entry(id)
    if not e then return 'gone' end
    if e.place ~= BLOCKED then return state_of(e) end
    state.blocked = state.blocked - 1
    redis.call('HDEL', P .. 'why', id)
    if ARGV[7] ~= '' then
      redis.call('HSET', P .. 'jobs', id, ARGV[7])
      e.size = #ARGV[7]
    end
    e.expires = here(ARGV[6])
    put_back(e)
  end,

  -- id, the generation it had, expiry, record
  replay = function()
    local old, mark = read_mark(id), read_mark(id)
    if not mark or mark.status ~= PENDING or mark.generation ~= tonumber(ARGV[6]) or entry(id) then return 'gone' end
    mark.status = REPLAYING
    mark.generation = mark.generation + 1
    write_mark(id, mark, old)
    redis.call('HSET', P .. 'jobs', id, ARGV[8])
    redis.call('ZADD', P .. 'index', 0, id)
    put_back({ id = id, tenant = mark.tenant, priority = tonumber(ARGV[9]), generation = mark.generation,
      has_history = 0, size = #ARGV[8], expires = here(ARGV[7]) })
  end,

  -- id, reason
  discard = function()
    local old, mark = read_mark(id), read_mark(id)
    if not mark or mark.status ~= PENDING then return 'gone' end
    mark.status = DISCARDED
    mark.discarded = ARGV[6]
    write_mark(id, mark, old)
  end,

  -- A node that stops gives back what it could not finish. id, token, and so on
  release = function()
    for at = 5, #ARGV, 2 do
      local e = entry(ARGV[at])
      if e and e.place == RUNNING and e.token == tonumber(ARGV[at + 1]) then give_back(e) end
    end
    wake()
  end,

  -- A job whose record cannot be read waits for an operator. id, token, reason
  set_aside = function()
    local e = entry(id)
    if not (e and e.place == RUNNING and e.token == tonumber(ARGV[6])) then return 'gone' end
    end_attempt(e, 'nothing', -1, 0)
    e.place = BLOCKED
    e.token = 0
    e.node = ''
    redis.call('HSET', P .. 'why', id, ARGV[7])
    state.blocked = state.blocked + 1
    touch(e)
    note_end(id)
  end,
}

local refused = change[ARGV[4]]()
if not refused then flush() end
return refused or 'ok'
