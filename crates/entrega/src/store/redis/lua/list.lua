-- Which jobs fit, newest first. ARGV[4] below this id (empty: from the newest), [5] how many at most, [6] how many to
-- look at, [7] tenant or nothing, [8] states, each between commas, or nothing.
-- Answers the ids and the last one looked at (empty: there are no more).

local limit, looks, tenant, wanted = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8]
local from = ARGV[4] == '' and '+' or '(' .. ARGV[4]
local ids = redis.call('ZREVRANGEBYLEX', P .. 'index', from, '-', 'LIMIT', 0, looks)
lane.preload(ids)

-- A tenant's endpoints are its own.
local function is_of(whose)
  return whose == tenant or string.sub(whose, 1, #tenant + 1) == tenant .. '/'
end

-- Whose it is and where it stands. A record of an end begins with `E`, its moment, state and tenant.
local function standing(id)
  local e = lane.entry(id)
  if e then return e.tenant, lane.state_of(e) end
  local mark = lane.read_mark(id)
  if mark and (mark.status == PENDING or mark.status == DISCARDED) then return mark.tenant, 'dlq' end
  local record = redis.call('HGET', P .. 'jobs', id)
  if record and string.byte(record) == 69 then
    local _, how, whose = struct.unpack('>dBc0Bc0', record, 2)
    return whose, how
  end
  local dropped = redis.call('HGET', P .. 'ends', id)
  if dropped then
    local _, how = struct.unpack('>dBc0', dropped)
    return nil, how
  end
  return nil, nil
end

local found = {}
for at, id in ipairs(ids) do
  local whose, how = standing(id)
  -- Whose a dropped job was stands in its record, which the reader looks at.
  local is_theirs = tenant == '' or whose == nil or is_of(whose)
  if how and is_theirs and (wanted == '' or string.find(wanted, ',' .. how .. ',', 1, true)) then
    found[#found + 1] = id
    if #found == limit then return { found, ids[at + 1] and id or (#ids == looks and id or '') } end
  end
end
return { found, #ids == looks and ids[#ids] or '' }
