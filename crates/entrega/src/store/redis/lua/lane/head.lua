-- One lane over Redis: the rules of core::lane in the same words, so that a reader can lay the two side by side.
--
-- KEYS[1] begins every key of the lane: <prefix>:{<lane>}:
-- ARGV[1] the moment in microseconds, 0 to ask the server; ARGV[2] the moment on the sender's clock;
-- ARGV[3] the lane's policy as JSON; what follows is the verb's own.
--
-- Everything is read when it is first needed, changed in tables, and written once by `flush`: a batch of jobs costs
-- one command per key, not one per job.

local P = KEYS[1]
-- The rules. In one table, because a function that closes over many others is slow to make, and all are made in every
-- call.
local lane = {}
local FOREVER = 9007199254740991
local RAMP_FREE = 4294967295
local PAUSE_MAX = 86400000000
local MOVES_MAX = 1000
-- Of a running job that went past the gates, the place is written down as PAST.
local READY, DELAYED, RUNNING, BLOCKED, PAST = 1, 2, 3, 4, 5
local PENDING, REPLAYING, REPLAYED, DISCARDED = 1, 2, 3, 4

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local shift = now - tonumber(ARGV[2])
local policy = cjson.decode(ARGV[3])

-- From the sender's clock to the server's.
function lane.here(moment)
  moment = tonumber(moment)
  if moment >= FOREVER then return FOREVER end
  return moment + shift
end

-- Calls a command with many arguments, all of a list or those from one place to another, as many at a time as Lua can
-- pass.
local CHUNK = 1000
function lane.call_many(command, key, list, from, to)
  to = to or #list
  for first = from or 1, to, CHUNK do
    redis.call(command, key, unpack(list, first, math.min(first + CHUNK - 1, to)))
  end
end
