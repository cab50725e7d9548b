-- Which job was taken under a key. ARGV[2] is what it is remembered under. Answers its id, or nothing.

local kept = redis.call('GET', ARGV[2])
kept = kept and cmsgpack.unpack(kept)
return kept and kept.expires > now and kept.id
