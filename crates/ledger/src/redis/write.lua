-- Applies one group: compares fences, judges units, runs their commands. Knows no record.
-- ARGV: prefix; fences, and of each its shard, token and number; units, and of each its conditions (hash, field, value or
-- nothing) and its commands. Answers what became of the group, and where that is known of its units: '.' for one that took
-- effect, else the place of the condition that did not hold.
local at = 0
local function take()
  at = at + 1
  return ARGV[at]
end
local function in_pieces(call, first, last, step)
  for from = first, last, step do
    call(unpack(ARGV, from, math.min(from + step - 1, last)))
  end
end
local prefix, fences, repeats = take(), {}, 0
local count = tonumber(take())
for fence = 1, count do
  local shard, token, number = take(), take(), tonumber(take())
  local key = prefix .. 'shard:' .. shard
  local held = redis.call('HMGET', key, 'token', 'seq')
  local seq = tonumber(held[2] or '0')
  if held[1] ~= token then return { 'fenced', shard } end
  if seq == number then repeats = repeats + 1
  elseif seq ~= number - 1 then return { 'rewound', shard, seq } end
  fences[fence] = { key, number, shard, seq }
end
if repeats > 0 and repeats < count then return { 'rewound', fences[1][3], fences[1][4] } end
if repeats > 0 then return { 'applied', redis.call('HGET', fences[1][1], 'last') or '' } end

local verdicts = {}
for unit = 1, tonumber(take()) do
  local verdict = '.'
  for place = 1, tonumber(take()) do
    local hash, field, is_absent, value = take(), take(), take(), take()
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
      local made = 0
      in_pieces(function(...) made = made + redis.call('HSET', key, ...) end, first, last, 1000)
      if made > 0 and index ~= '' then
        for field = first, last, 2 do redis.call('ZADD', index, 0, ARGV[field]) end
      end
    elseif kind == 'remove' then
      in_pieces(function(...) redis.call('HDEL', key, ...) end, first, last, 1000)
      if index ~= '' then in_pieces(function(...) redis.call('ZREM', index, ...) end, first, last, 1000) end
    elseif kind == 'append' then
      redis.call('XADD', key, '*', 'entry', ARGV[first])
    else
      redis.call('XDEL', key, ARGV[first])
    end
  end
  verdicts[unit] = verdict
end
local said = table.concat(verdicts, ',')
for _, fence in ipairs(fences) do redis.call('HSET', fence[1], 'seq', fence[2], 'last', said) end
return { 'applied', said }
