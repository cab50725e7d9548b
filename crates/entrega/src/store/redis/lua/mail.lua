-- What is known of addresses and mails. ARGV[2] names the duty, the rest is its own.

-- A suppression begins with the moment since when, and its code.
local MOMENT_BYTES = 8
local function is_complaint(suppression)
  local _, code = struct.unpack('>dBc0', suppression)
  return code == 'COMPLAINT'
end

-- [3] where suppressions are, [4] where their order is, [5] the address, [6] the suppression. The first stays, but a
-- complaint takes the place of a bounce, and its moment.
local function suppress()
  local suppression = ARGV[6]
  local first = redis.call('HGET', ARGV[3], ARGV[5])
  if first then
    if is_complaint(first) or not is_complaint(suppression) then return 0 end
    suppression = string.sub(first, 1, MOMENT_BYTES) .. string.sub(suppression, MOMENT_BYTES + 1)
  end
  redis.call('HSET', ARGV[3], ARGV[5], suppression)
  redis.call('ZADD', ARGV[4], 0, ARGV[5])
  return 1
end

-- [3] to [5] as above. Answers 1 if there was one.
local function unsuppress()
  redis.call('ZREM', ARGV[4], ARGV[5])
  return redis.call('HDEL', ARGV[3], ARGV[5])
end

-- [3] and [4] as above, [5] after this address (empty: from the first), [6] how many. Answers addresses and suppressions.
local function suppressions()
  local from = ARGV[5] == '' and '-' or '(' .. ARGV[5]
  local addresses = redis.call('ZRANGEBYLEX', ARGV[4], from, '+', 'LIMIT', 0, ARGV[6])
  if #addresses == 0 then return { {}, {} } end
  return { addresses, redis.call('HMGET', ARGV[3], unpack(addresses)) }
end

-- What came back about a mail: each notice begins with the moment it is forgotten, and what it is known by. All are
-- forgotten with the last one.
local KNOWN_BYTES = 32
local function notices(key)
  local rows = redis.call('LRANGE', key, 0, -1)
  if #rows > 0 and struct.unpack('>d', rows[#rows]) <= now then return {} end
  return rows
end

-- [3] where, [4] what it is known by, [5] the notice, [6] how long it is kept, [7] how many are.
local function note()
  local rows = notices(ARGV[3])
  if #rows == 0 then redis.call('DEL', ARGV[3]) end
  for _, row in ipairs(rows) do
    if string.sub(row, MOMENT_BYTES + 1, MOMENT_BYTES + KNOWN_BYTES) == ARGV[4] then return 'known' end
  end
  if #rows >= tonumber(ARGV[7]) then return 'full' end
  local length = tonumber(ARGV[6])
  redis.call('RPUSH', ARGV[3], struct.pack('>d', now + length) .. ARGV[4] .. ARGV[5])
  redis.call('PEXPIRE', ARGV[3], math.ceil(length / 1000))
  return 'kept'
end

-- [3] on: where. Answers a list of notices for each.
local function feedback()
  local all = {}
  for at = 3, #ARGV do all[#all + 1] = notices(ARGV[at]) end
  return all
end

local duties =
  { suppress = suppress, unsuppress = unsuppress, suppressions = suppressions, note = note, feedback = feedback }
return duties[ARGV[2]]()
