-- Gives a shard up, if it is still owned under this token.
if redis.call('HGET', KEYS[1], 'token') == ARGV[1] then redis.call('HSET', KEYS[1], 'token', '') end
