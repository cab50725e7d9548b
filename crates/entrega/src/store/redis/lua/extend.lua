-- Renews leases. ARGV[4] the lease; then two per job: id, token. Answers the ids that are no longer the sender's.

local lost, renewed = {}, {}
for at = 5, #ARGV, 2 do
  local e = lane.entry(ARGV[at])
  if e and e.place == RUNNING and e.token == tonumber(ARGV[at + 1]) then
    renewed[#renewed + 1] = now + tonumber(ARGV[4])
    renewed[#renewed + 1] = lane.leased(e)
  else
    lost[#lost + 1] = ARGV[at]
  end
end
if #renewed > 0 then lane.call_many('ZADD', P .. 'leases', renewed) end
return lost
