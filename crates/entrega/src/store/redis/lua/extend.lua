-- Renews leases. ARGV[4] the lease; then two per job: id, token. Answers the ids that are no longer the sender's.

local lost = {}
for at = 5, #ARGV, 2 do
  local e = lane.entry(ARGV[at])
  if e and e.place == RUNNING and e.token == tonumber(ARGV[at + 1]) then
    leases[e.id] = now + tonumber(ARGV[4])
  else
    lost[#lost + 1] = ARGV[at]
  end
end
lane.write_leases()
return lost
