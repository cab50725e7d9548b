-- Applies one group: compares fences, judges units, runs their commands. Knows no record.
-- ARGV: prefix; the mark of the data; fences, and of each its shard, token and number; runs of units that are judged as one,
-- and of each how many it stands for, its conditions (hash, field, value or nothing) and its commands. Answers what became
-- of the group, and where that is known of its units: '.' for one that took effect, else the place of the condition that
-- did not hold.
local at = 0
local function take()
  at = at + 1
  return ARGV[at]
end
local function in_pieces(command, key, args, first, last)
  local sum = 0
  for from = first, last, 1000 do
    sum = sum + redis.call(command, key, unpack(args, from, math.min(from + 999, last)))
  end
  return sum
end
local prefix, mark, fences, repeats = take(), take(), {}, 0
local count = tonumber(take())
local function is_gone()
  return redis.call('GET', prefix .. 'incarnation') ~= mark
end
if count == 0 and is_gone() then return { 'gone', '' } end
for fence = 1, count do
  local shard, token, number = take(), take(), tonumber(take())
  local key = prefix .. 'shard:' .. shard
  local held = redis.call('HMGET', key, 'token', 'seq')
  local seq = tonumber(held[2] or '0')
  if not held[1] and is_gone() then return { 'gone', '' } end
  if held[1] ~= token then return { 'fenced', shard } end
  if seq == number then repeats = repeats + 1
  elseif seq ~= number - 1 then return { 'rewound', shard, seq } end
  fences[fence] = { key, number, shard, seq }
end
if repeats > 0 and repeats < count then return { 'rewound', fences[1][3], fences[1][4] } end
if repeats > 0 then return { 'applied', redis.call('HGET', fences[1][1], 'last') or '' } end

local function put(key, index, args, first, last)
  -- A row that was there before is in the index already.
  if in_pieces('HSET', key, args, first, last) == 0 or index == '' then return end
  local members = {}
  for place = 1, last - first, 2 do members[place], members[place + 1] = '0', args[first + place - 1] end
  in_pieces('ZADD', index, members, 1, #members)
end
-- Puts of small units wait until something looks at what they change: those of many units are one command for each table.
local waiting, waiting_keys = {}, {}
local function flush()
  for _, key in ipairs(waiting_keys) do put(key, waiting[key].index, waiting[key].args, 1, #waiting[key].args) end
  waiting, waiting_keys = {}, {}
end
local function put_later(key, index, first, last)
  if not waiting[key] then
    waiting[key], waiting_keys[#waiting_keys + 1] = { index = index, args = {}, fields = {} }, key
  end
  local args, fields = waiting[key].args, waiting[key].fields
  for place = first, last, 2 do
    fields[ARGV[place]] = true
    args[#args + 1], args[#args + 2] = ARGV[place], ARGV[place + 1]
  end
end

local verdicts = {}
for _ = 1, tonumber(take()) do
  local units, verdict = tonumber(take()), '.'
  for place = 1, tonumber(take()) do
    local hash, field, is_absent, value = take(), take(), take(), take()
    if waiting[hash] and waiting[hash].fields[field] then flush() end
    local found = redis.call('HGET', hash, field)
    local holds = is_absent == '1' and not found or is_absent == '0' and found == value
    if verdict == '.' and not holds then verdict = tostring(place - 1) end
  end
  for _ = 1, tonumber(take()) do
    local kind, key, index, args = take(), take(), take(), tonumber(take())
    local first, last = at + 1, at + args
    at = last
    if verdict ~= '.' then -- its commands are passed over
    elseif kind == 'put' then
      if args > 8 and not waiting[key] then put(key, index, ARGV, first, last)
      else put_later(key, index, first, last) end
    elseif kind == 'remove' then
      if waiting[key] then flush() end
      if in_pieces('HDEL', key, ARGV, first, last) > 0 and index ~= '' then
        in_pieces('ZREM', index, ARGV, first, last)
      end
    elseif kind == 'append' then
      redis.call('XADD', key, '*', 'entry', ARGV[first])
    else
      in_pieces('XDEL', key, ARGV, first, last)
    end
  end
  for _ = 1, units do verdicts[#verdicts + 1] = verdict end
end
flush()
local said = table.concat(verdicts, ',')
for _, fence in ipairs(fences) do redis.call('HSET', fence[1], 'seq', fence[2], 'last', said) end
return { 'applied', said }
