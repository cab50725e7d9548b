-- Whatever may hold jobs back, before a lane or before one tenant: throttle, cadence, breaker, an asked-for pause.

-- The gate before the lane, or before a tenant by its name. A tenant may have a throttle of its own beside the lane's.
function lane.gate_of(scope, kept, name)
  local throttle, breaker, cadence, own = policy.throttle, policy.breaker, nil, nil
  if throttle and throttle.scope ~= scope then throttle = nil end
  if breaker and breaker.scope ~= scope then breaker = nil end
  if scope == 'lane' then cadence = policy.cadence end
  if scope == 'tenant' and policy.turns then own = kept.own end
  if not (throttle or breaker or cadence or own) then return nil end
  local throttles = {}
  if throttle then
    local key = scope == 'lane' and P .. 'starts' or P .. 'starts:' .. name
    throttles[1] = { max = throttle.max, per = throttle.per, key = key }
  end
  if own then throttles[#throttles + 1] = { max = own.max, per = own.per, key = lane.own_starts(name) } end
  return { kept = kept, throttles = throttles, breaker = breaker, cadence = cadence }
end

-- Where the starts are that a tenant's own throttle counts.
function lane.own_starts(name) return P .. 'own:' .. name end

local lane_gate = lane.gate_of('lane', state.gate)

-- From when on a throttle allows the next start.
function lane.throttle_next(throttle)
  if not throttle.count then throttle.count = redis.call('LLEN', throttle.key) end
  if throttle.count < throttle.max then return 0 end
  if not throttle.oldest then throttle.oldest = tonumber(redis.call('LINDEX', throttle.key, -throttle.max)) end
  return throttle.oldest + throttle.per
end

-- Records a start at a throttle.
function lane.throttle_start(throttle)
  lane.throttle_next(throttle)
  while throttle.count >= throttle.max do
    redis.call('LPOP', throttle.key)
    throttle.count = throttle.count - 1
  end
  redis.call('RPUSH', throttle.key, now)
  lane.forget_starts_after(throttle.key, throttle.per)
  throttle.count = throttle.count + 1
  throttle.oldest = nil
end

-- Starts that are older than the period hold nobody back.
function lane.forget_starts_after(key, per)
  redis.call('PEXPIRE', key, math.ceil(per / 1000) + 1000)
end

-- Whether the breaker lets nobody through, and until when, `nil` for "until an attempt has ended".
function lane.breaker_shut(kept, running)
  if kept.shut then return now < kept.till, kept.till end
  return running >= (kept.ramp or RAMP_FREE), nil
end

-- What holds a start now: its name and until when, `nil` for "until an attempt has ended"; and if nothing does, whether
-- the job goes past the gate, because its destination is down and is not going to be called. `running` are those that
-- came through here.
function lane.gate_hold(gate, running)
  if not gate then return nil end
  local kept = gate.kept
  if gate.breaker then
    local shut, till = lane.breaker_shut(kept, running)
    if shut and gate.breaker.pass then return nil, nil, true end
    if shut then return 'breaker', till end
  end
  if now < (kept.not_before or 0) then return 'retry_after', kept.not_before end
  local next = 0
  for _, throttle in ipairs(gate.throttles) do next = math.max(next, lane.throttle_next(throttle)) end
  if now < next then return 'throttle', next end
  if gate.cadence and now < (kept.next or 0) then return 'cadence', kept.next end
  return nil
end

-- Records the start of a job.
function lane.gate_start(gate, id)
  if not gate then return end
  local kept = gate.kept
  -- Whose the last start is.
  kept.last = id
  for _, throttle in ipairs(gate.throttles) do lane.throttle_start(throttle) end
  if gate.cadence then
    kept.without_last = kept.next
    kept.next = now + (kept.interval or gate.cadence.initial)
  end
  if gate.breaker and kept.shut then
    kept.shut = 'probing'
    kept.till = now + gate.breaker.probe
    kept.half_opened = (kept.half_opened or 0) + 1
  end
end

-- A probe ended without saying anything about the destination: another may go.
function lane.give_up_probe(kept)
  if kept.shut == 'probing' then
    kept.shut = 'open'
    kept.till = now
  end
end

-- Gives back the start of a job that called nobody, unless others started since.
function lane.gate_give_back(gate, id)
  local kept = gate.kept
  if kept.last ~= id then return end
  for _, throttle in ipairs(gate.throttles) do
    redis.call('RPOP', throttle.key)
    throttle.count = nil
    throttle.oldest = nil
  end
  if gate.cadence then kept.next = kept.without_last end
  if gate.breaker then lane.give_up_probe(kept) end
end

function lane.breaker_learn(gate, lesson)
  local kept, ramp = gate.kept, gate.kept.ramp or RAMP_FREE
  if lesson == 'up' or lesson == 'slower' then
    if not kept.shut then
      kept.ramp = math.min(ramp * 2, RAMP_FREE)
      kept.failures = 0
    elseif kept.shut == 'probing' then
      kept.ramp = 1
      kept.failures = 0
      kept.shut = nil
      kept.closed = (kept.closed or 0) + 1
    end
  elseif lesson == 'down' then
    local failures = (kept.failures or 0) + 1
    if kept.shut == 'probing' or (not kept.shut and (failures >= gate.breaker.failures or ramp ~= RAMP_FREE)) then
      kept.shut = 'open'
      kept.till = now + gate.breaker.open
      kept.opened = (kept.opened or 0) + 1
    elseif not kept.shut then
      kept.failures = failures
    end
  else
    lane.give_up_probe(kept)
  end
end

-- Learns from the outcome of a job.
function lane.gate_learn(gate, id, lesson, pause, took)
  if not gate or lesson == 'apart' then return end
  if lesson == 'unused' then return lane.gate_give_back(gate, id) end
  local kept, cadence = gate.kept, gate.cadence
  if lesson == 'slower' and pause >= 0 then
    kept.not_before = math.max(kept.not_before or 0, now + math.min(pause, PAUSE_MAX))
  end
  if cadence then
    local interval = kept.interval or cadence.initial
    if lesson == 'slower' or took > cadence.slow_after then
      kept.penalties = (kept.penalties or 0) + 1
      kept.interval = math.min(interval * cadence.penalty, cadence.max)
      kept.next = math.max(kept.next or 0, now + kept.interval)
      -- A start that is given back does not take the penalty along.
      kept.without_last = math.max(kept.without_last or 0, now + kept.interval)
    elseif lesson == 'up' then
      kept.interval = math.max(interval - cadence.step, cadence.min)
    end
  end
  if gate.breaker then lane.breaker_learn(gate, lesson) end
end
