#!/usr/bin/env bash
# Runs a job under mpirun so that it can be asked to stop.
#
#   launch/job.sh RANKS PROGRAM [ARGUMENT...]
#   launch/job.sh 8 build/release/deepnet train --config run.textproto
#
# SIGTERM or SIGUSR1 to this script: all ranks save and end, and so does this, with code 75. SIGUSR2: they
# save and go on. (SIGTERM to mpirun itself leaves them a second.) Other options of mpirun go into
# its environment variables, or into MPIEXEC, the launcher with its options (default: mpirun).
set -euo pipefail
[[ ${1:-} != --help && $# -ge 2 ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
ranks=$1
shift

read -ra launcher <<< "${MPIEXEC:-mpirun}"
"${launcher[@]}" -n "$ranks" "$@" &
job=$!
trap 'kill -USR1 "$job" 2> /dev/null || true' TERM USR1
trap 'kill -USR2 "$job" 2> /dev/null || true' USR2

# A signal ends the waiting, not the job.
code=0
wait "$job" || code=$?
while [[ $code -gt 128 ]] && kill -0 "$job" 2> /dev/null; do
  code=0
  wait "$job" || code=$?
done
exit "$code"
