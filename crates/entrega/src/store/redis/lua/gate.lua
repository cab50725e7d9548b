-- A call that is no job, at the gate of a lane that has none. ARGV[4] what: `pass` asks for a start and takes it,
-- `anyway` takes it unless the destination is down or asked for a pause, `learn` tells what came of a call: [5] the lesson,
-- [6] the pause, [7] how long it took. The first two answer `through`, or what holds it and for how long, nothing where that is not known.

-- What nobody used for so long knows nothing that still counts.
local KEPT_MS = 172800000
local CALL = ''

local function keep()
  redis.call('SET', P .. 'state', cmsgpack.pack(state), 'PX', KEPT_MS)
end

if ARGV[4] == 'learn' then
  lane.gate_learn(lane_gate, CALL, ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]))
  keep()
  return { 'through', false }
end
local held, till = lane.gate_hold(lane_gate, 0)
if held and (ARGV[4] == 'pass' or held == 'breaker' or held == 'retry_after') then
  return { held, till and math.max(till - now, 0) or false }
end
lane.gate_start(lane_gate, CALL)
keep()
return { 'through', false }
