-- A request that must happen once. ARGV[2] `begin` or `end`, [3] what it is remembered under, [4] a hash of it, [5] for how
-- long it is remembered. `begin`: [6] how long it may take; answers `new`, `running` with how much longer at most, `ended`
-- with the answer, or `other`. `end`: [6] the answer; without one it may be made again at once.

local what, key, hash = ARGV[2], ARGV[3], ARGV[4]
local lasts_ms = math.max(math.ceil(tonumber(ARGV[5]) / 1000), 1)

local function keep(kept)
  redis.call('SET', key, cmsgpack.pack(kept), 'PX', lasts_ms)
end

if what == 'end' then
  -- Without an answer the same request may be made again at once; another one under this key may not.
  keep({ request = hash, answer = ARGV[6], till = 0 })
  return { 'done', false }
end
local kept = redis.call('GET', key)
kept = kept and cmsgpack.unpack(kept)
if kept then
  if kept.request ~= hash then return { 'other', false } end
  if kept.answer then return { 'ended', kept.answer } end
  if kept.till > now then return { 'running', kept.till - now } end
end
keep({ request = hash, till = now + tonumber(ARGV[6]) })
return { 'new', false }
