-- Shows that owners live: KEYS the mark of the data and their shards, ARGV the mark as it was and their tokens. Answers the
-- time and which still stand, or nothing if the mark is another.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {} end
local answer = redis.call('TIME')
for place = 2, #KEYS do
  local stands = redis.call('HGET', KEYS[place], 'token') == ARGV[place]
  if stands then redis.call('HINCRBY', KEYS[place], 'beat', 1) end
  answer[place + 1] = stands and '1' or '0'
end
return answer
