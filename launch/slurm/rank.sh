#!/usr/bin/env bash
# Runs one rank of a job and ends with its exit code; started on every task by run.sh.
#
#   launch/slurm/rank.sh PROGRAM [ARGUMENT...]
#
# What the rank writes to stderr also goes into a file of its own, whose name begins with DEEPNET_RANK_LOG; its first
# line names the host, its last one the exit code.
set -uo pipefail
export LC_ALL=C
file=$DEEPNET_RANK_LOG${PMIX_RANK:-$SLURM_PROCID}.log
host=${SLURMD_NODENAME:-$(uname -n)}
note() { printf '%(%F %T)T %s: %s\n' -1 "$host" "$*" >> "$file"; }

note "$*"
# Signals are the program's business. This shell outlives them, and so does what copies its lines.
trap : TERM USR1 USR2
{ "$@" 2>&1 >&3 3>&- | (trap '' INT TERM USR1 USR2; exec tee -a "$file" >&2); } 3>&1
code=${PIPESTATUS[0]}
note "ended with code $code"
exit "$code"
