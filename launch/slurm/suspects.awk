# Reads the files of a start's ranks (rank.sh) and prints the nodes that seem to have ended it: the one where a rank
# was killed first while the node lived; else those of ranks that were silent when others ended with 8 or 9; else
# those of the ranks that these name. And those of `nodes`, a line each, where no rank began.
FNR == 1 {
  rank = FILENAME
  gsub(/.*_rank-|\.log$/, "", rank)
  host[rank] = $3
  sub(/:$/, "", host[rank])
  begun[host[rank]]
}
/ ended with code [0-9]+$/ {
  code[rank] = $NF
  at[rank] = $1 " " $2
  if ($NF ~ /^[89]$/) noticed = 1
}
match($0, /seems to wait for rank [0-9]+/) { named[substr($0, RSTART + 23, RLENGTH - 23)] }
match($0, /^error: rank [0-9]+, .*: no progress for/) { named[$3 + 0] }
END {
  first = -1
  for (r in code) if (code[r] > 128 && (first < 0 || at[r] < at[first])) first = r
  for (r in host) if (noticed && !(r in code)) silent[r]
  if (first >= 0) {
    print host[first]
  } else if (length(silent) > 0) {
    for (r in silent) print host[r]
  } else {
    for (r in named) if (r in host) print host[r]
  }
  split(nodes, all, "\n")
  for (i in all) if (!(all[i] in begun)) print all[i]
}
