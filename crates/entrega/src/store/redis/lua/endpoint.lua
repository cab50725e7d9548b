-- Keeps an endpoint, if the one with its name is still the one that was read. ARGV[2] the registry, [3] the field, [4] the
-- version that was read (0: there was none), [5] the endpoint. Answers 1, or 0 if somebody else was faster.

local function version_of(kept)
  -- One that cannot be read is there for nobody.
  local is_readable, version = pcall(function() return cjson.decode(kept).version end)
  return is_readable and version or 0
end

local kept = redis.call('HGET', ARGV[2], ARGV[3])
if (kept and version_of(kept) or 0) ~= tonumber(ARGV[4]) then return 0 end
redis.call('HSET', ARGV[2], ARGV[3], ARGV[5])
return 1
