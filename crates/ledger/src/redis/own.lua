-- Takes a shard that is free, or whose owner stood still: KEYS the shard and the mark of the data, ARGV the node, what was
-- seen of the owner, and the mark as it was when the ledger was opened.
if redis.call('GET', KEYS[2]) ~= ARGV[4] then return { 'gone', '', 0 } end
local held = redis.call('HMGET', KEYS[1], 'token', 'beat', 'epoch', 'seq')
local token, beat = held[1] or '', held[2] or '0'
if token ~= '' and not (token == ARGV[2] and beat == ARGV[3]) then return { 'held', token, beat } end
local epoch = tonumber(held[3] or '0') + 1
local mine = string.format('%.0f:%s', epoch, ARGV[1])
redis.call('HSET', KEYS[1], 'token', mine, 'beat', 0, 'epoch', epoch)
return { 'owned', mine, held[4] or '0' }
