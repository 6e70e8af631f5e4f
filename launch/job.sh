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
export LC_ALL=C
[[ ${1:-} != --help && $# -ge 2 ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
ranks=$1
shift
# shellcheck source=launch/signals.sh
source "$(dirname "$0")/signals.sh"

read -ra launcher <<< "${MPIEXEC:-mpirun}"
pass_signals "${launcher[@]}" -n "$ranks" "$@"
