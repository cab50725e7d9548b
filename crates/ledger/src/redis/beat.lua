-- Shows that owners live: KEYS their shards, ARGV their tokens. Answers which still stand, and the time.
local standing = redis.call('TIME')
for place, key in ipairs(KEYS) do
  local stands = redis.call('HGET', key, 'token') == ARGV[place]
  if stands then redis.call('HINCRBY', key, 'beat', 1) end
  standing[place + 2] = stands and '1' or '0'
end
return standing
