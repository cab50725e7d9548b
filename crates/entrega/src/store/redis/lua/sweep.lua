-- What has been kept long enough. ARGV[4] names the duty, the rest is its own.

local ID_MAX = string.rep('\255', 16)

-- Ended jobs from an id on: ids made within the retention time need not be looked at. [5] the id, [6] keep what ended
-- since, [7] the first id that is young enough, [8] how many to look at. Answers how many left, and where to go on.
local function ended_jobs()
  local keep_since, looks = tonumber(ARGV[6]) + shift, tonumber(ARGV[8])
  local ids = redis.call('ZRANGEBYLEX', P .. 'index', '[' .. ARGV[5], '(' .. ARGV[7], 'LIMIT', 0, looks)
  lane.preload(ids)
  local gone = {}
  for _, id in ipairs(ids) do
    if not lane.entry(id) and redis.call('HEXISTS', P .. 'mark', id) == 0 then
      local at
      local record = redis.call('HGET', P .. 'jobs', id)
      if record and string.byte(record) == 69 then
        at = struct.unpack('>d', record, 2)
      else
        local dropped = redis.call('HGET', P .. 'ends', id)
        if dropped then at = struct.unpack('>d', dropped) end
      end
      if at and at < keep_since then gone[#gone + 1] = id end
    end
  end
  if #gone > 0 then
    for _, key in ipairs({ 'jobs', 'ends', 'history' }) do lane.call_many('HDEL', P .. key, gone) end
    lane.call_many('ZREM', P .. 'index', gone)
  end
  return { #gone, #ids == looks and ids[#ids] or '' }
end

-- Dead letters past their time or past the cap, oldest first. [5] the cap, [6] how many at most.
local function dead_to_leave()
  local over = redis.call('ZCARD', P .. 'dead:age') - tonumber(ARGV[5])
  local rows, most = {}, tonumber(ARGV[6])
  local ids = redis.call('ZRANGE', P .. 'dead:age', 0, most + 100)
  for _, id in ipairs(ids) do
    local mark = lane.read_mark(id)
    if #rows == most then break end
    if mark and mark.status ~= REPLAYING then
      if mark.expires <= now then
        rows[#rows + 1] = { id, 'ttl' }
      elseif over > 0 then
        rows[#rows + 1] = { id, 'cap' }
      else
        break
      end
      over = over - 1
    end
  end
  return rows
end

-- Forgets dead letters that were written down. [5] on are ids.
local function forget_dead()
  for at = 5, #ARGV do
    local id = ARGV[at]
    local mark = lane.read_mark(id)
    if mark and mark.status ~= REPLAYING then
      lane.count_dead(mark, -1)
      for _, key in ipairs({ 'mark', 'dead', 'tried' }) do redis.call('HDEL', P .. key, id) end
      redis.call('ZREM', P .. 'dead:age', id)
      local record = redis.call('HGET', P .. 'jobs', id)
      if not record then redis.call('ZREM', P .. 'index', id) end
    end
  end
  lane.flush()
  return {}
end

-- Dropped jobs that still carry their body. [5] how many.
local function dropped()
  local ids = {}
  local page = redis.call('HSCAN', P .. 'ends', 0, 'COUNT', ARGV[5])
  for at = 1, #page[2], 2 do ids[#ids + 1] = page[2][at] end
  return ids
end

-- Puts the end of a dropped job in the place of what it carried. [5] on: id, record.
local function compact()
  for at = 5, #ARGV, 2 do
    if redis.call('HDEL', P .. 'ends', ARGV[at]) == 1 then
      redis.call('HSET', P .. 'jobs', ARGV[at], ARGV[at + 1])
      redis.call('HDEL', P .. 'history', ARGV[at])
    end
  end
  return {}
end

local duties = { ended = ended_jobs, dead = dead_to_leave, forget = forget_dead, dropped = dropped, compact = compact }
return duties[ARGV[4]]()
