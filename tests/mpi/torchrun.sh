#!/usr/bin/env bash
# Starts a program as several ranks as torchrun --no-python does: with its variables, and without MPI.
#
#   tests/mpi/torchrun.sh RANKS PROGRAM [ARGUMENT...]           on this machine
#   tests/mpi/torchrun.sh --hosts RANKS PROGRAM [ARGUMENT...]   each on a pretend host of its own (root)
#
# Ends when all have, with the highest of their exit codes, after a line "exit codes: ..." by rank. Where
# each rank needs words of its own, @RANK@ in an argument stands for its number. Environment: TORCHRUN_PORT
# (default: a free one).
set -euo pipefail
export LC_ALL=C
hosts=no
if [[ ${1:-} == --hosts ]]; then
  hosts=yes
  shift
fi
[[ ${1:-} != --help && $# -ge 2 ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
ranks=$1
shift
testhosts=$(dirname "$0")/testhosts.sh

export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 GROUP_RANK=0
export TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_RUN_ID=test
export MASTER_PORT=${TORCHRUN_PORT:-$(python3 -I -c '
import socket
with socket.socket() as s:
    s.bind(("", 0))
    print(s.getsockname()[1])')}
if [[ $hosts == yes ]]; then
  "$testhosts" down
  "$testhosts" up "$ranks"
  trap '"$testhosts" down' EXIT
  export MASTER_ADDR=${TH_PREFIX:-h}1 LOCAL_WORLD_SIZE=1
fi

processes=()
for ((rank = 0; rank < ranks; ++rank)); do
  export RANK=$rank LOCAL_RANK=$rank
  command=("${@//@RANK@/$rank}")
  if [[ $hosts == yes ]]; then
    export LOCAL_RANK=0 GROUP_RANK=$rank
    command=("$testhosts" exec "${TH_PREFIX:-h}$((rank + 1))" "${command[@]}")
  fi
  "${command[@]}" &
  processes+=($!)
done
trap 'kill "${processes[@]}" 2> /dev/null || true' TERM INT
codes=()
highest=0
for process in "${processes[@]}"; do
  code=0
  wait "$process" || code=$?
  codes+=("$code")
  [[ $code -le $highest ]] || highest=$code
done
echo "exit codes: ${codes[*]}" >&2
exit "$highest"
