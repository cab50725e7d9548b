-- Everything there is about some jobs. ARGV[4] on are ids. One row each: the entry as an array or false, why it is
-- blocked, its record, its history, how it was dropped, its dead letter, the mark of that, what replays tried.

local rows = {}
for at = 4, #ARGV do
  local id = ARGV[at]
  local e, mark = lane.entry(id), lane.read_mark(id)
  rows[#rows + 1] = {
    e and { lane.state_of(e), e.priority, e.generation, e.attempt, e.due, e.expires, e.tenant },
    redis.call('HGET', P .. 'why', id),
    redis.call('HGET', P .. 'jobs', id),
    redis.call('HGET', P .. 'history', id),
    redis.call('HGET', P .. 'ends', id),
    redis.call('HGET', P .. 'dead', id),
    mark and { mark.status, mark.generation, mark.discarded or false, mark.notes or {} },
    redis.call('HGET', P .. 'tried', id),
  }
end
return rows
