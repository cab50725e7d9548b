-- Ends: dead letters, and jobs that were dropped or cancelled.

local ended, ended_count = {}, 0

function lane.note_end(id)
  ended_count = ended_count + 1
  ended[ended_count] = id
end

-- Whether anybody waits for the end of a job.
function lane.has_waiters() return redis.call('EXISTS', P .. 'waited') == 1 end

function lane.read_mark(id)
  local packed = redis.call('HGET', P .. 'mark', id)
  return packed and cmsgpack.unpack(packed)
end

function lane.is_open(mark) return mark.status == PENDING or mark.status == REPLAYING end

function lane.count_dead(mark, by)
  if not lane.is_open(mark) then return end
  local hour = math.floor(mark.moved / 3600000000)
  local field = mark.tenant .. '\0' .. mark.code .. '\0' .. string.format('%d', hour)
  if redis.call('HINCRBY', P .. 'dead:counts', field, by) <= 0 then redis.call('HDEL', P .. 'dead:counts', field) end
  state.dead = state.dead + by
end

function lane.write_mark(id, mark)
  local old = lane.read_mark(id)
  if old then lane.count_dead(old, -1) end
  lane.count_dead(mark, 1)
  redis.call('HSET', P .. 'mark', id, cmsgpack.pack(mark))
end

function lane.change_status(id, status)
  local mark = lane.read_mark(id)
  if mark then
    mark.status = status
    lane.write_mark(id, mark)
  end
end

function lane.bury(id, json, mark)
  lane.write_mark(id, mark)
  redis.call('HSET', P .. 'dead', id, json)
  redis.call('ZADD', P .. 'dead:age', mark.moved, id)
  redis.call('HDEL', P .. 'tried', id)
  redis.call('HDEL', P .. 'jobs', id)
end

-- A replay that ended undelivered: its entry waits again, with what was tried.
function lane.return_to_dead(id, mark, reason)
  mark.status = PENDING
  mark.notes = mark.notes or {}
  mark.notes[#mark.notes + 1] = reason
  lane.write_mark(id, mark)
  local history = redis.call('HGET', P .. 'history', id)
  if history then
    local tried = redis.call('HGET', P .. 'tried', id) or ''
    redis.call('HSET', P .. 'tried', id, tried .. struct.pack('>I4', #history) .. history)
    redis.call('HDEL', P .. 'history', id)
  end
  redis.call('HDEL', P .. 'jobs', id)
end

-- A job whose attempt has ended waits for an operator.
function lane.block(e, reason)
  redis.call('HSET', P .. 'why', e.id, reason)
  e.place = BLOCKED
  e.token = 0
  e.node = ''
  state.blocked = state.blocked + 1
  lane.touch(e)
  lane.note_end(e.id)
end

-- The end of a job that was not delivered; it has been taken out.
function lane.drop(id, how, reason)
  local mark = lane.read_mark(id)
  if mark then
    lane.return_to_dead(id, mark, reason)
  else
    redis.call('HSET', P .. 'ends', id, struct.pack('>dBc0Hc0', now, #how, how, #reason, reason))
  end
  lane.note_end(id)
end
