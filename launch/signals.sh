# shellcheck shell=bash
# Sourced by the scripts that start jobs.

# pass_signals COMMAND...: runs it and returns its exit code. SIGTERM and SIGUSR1 to this shell reach it as
# SIGUSR1, at which all ranks save and end with code 75, and SIGUSR2, at which they save and go on, as
# itself: SIGTERM to mpirun itself leaves the ranks a second.
pass_signals() {
  local job code=0
  "$@" &
  job=$!
  # shellcheck disable=SC2064  # this job, and no later one
  trap "kill -USR1 $job 2> /dev/null || true" TERM USR1
  # shellcheck disable=SC2064
  trap "kill -USR2 $job 2> /dev/null || true" USR2
  wait "$job" || code=$?
  # A signal ends the waiting, not the job.
  while [[ $code -gt 128 ]] && kill -0 "$job" 2> /dev/null; do
    code=0
    wait "$job" || code=$?
  done
  trap - TERM USR1 USR2
  return "$code"
}
