-- What belongs to no lane. ARGV[1] the moment in microseconds, 0 to ask the server; what follows is the verb's own.

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
