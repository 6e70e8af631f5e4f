# shellcheck shell=bash
# What the jobs of launch/slurm share; sourced by them. They are submitted in the project's folder, or
# DEEPNET_HOME names it: sbatch copies a script away from where it lies.
set -euo pipefail
export DEEPNET_HOME=${DEEPNET_HOME:-$SLURM_SUBMIT_DIR}
# shellcheck source=launch/signals.sh
source "$DEEPNET_HOME/launch/signals.sh"
# shellcheck source=launch/slurm/site.sh
source "${DEEPNET_SITE:-$DEEPNET_HOME/launch/slurm/site.sh}"

restart=${SLURM_RESTART_COUNT:-0}

say() { printf '%(%F %T)T %s\n' -1 "$SLURM_JOB_NAME $SLURM_JOB_ID, restart $restart: $*"; }

# job_field NAME: what Slurm says of this job.
job_field() {
  scontrol --oneliner show job "$SLURM_JOB_ID" | grep -oE "(^| )$1=[^ ]+" | head -n 1 | cut -d= -f2-
}

# Sets `launcher`: srun where Slurm has PMIx, else mpirun, which starts its daemons by srun.
choose_launcher() {
  if [[ " $(srun --mpi=list 2>&1 | tr '\n\t' '  ') " == *" pmix "* ]]; then
    launcher=(srun --mpi=pmix --kill-on-bad-exit=1)
    # Of srun's own: sbatch's --cpus-per-task is not inherited since Slurm 22.05.
    [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
    # With the default, Slurm 22.05 lets a rank leave MPI_Init too early, and a peer crashes now and then.
    export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-tree}
  else
    launcher=(mpirun -n "$SLURM_NTASKS")
  fi
}

# The program looks at this to save before the time limit; older Slurms do not set it.
set_end_time() {
  local end
  end=$(date -d "$(job_field EndTime)" +%s 2> /dev/null) || return 0
  export SLURM_JOB_END_TIME=${SLURM_JOB_END_TIME:-$end}
}

# Puts this job back into the queue, under the same number; Slurm counts how often. Not one that somebody
# cancelled: it would rise again.
requeue() {
  local state
  state=$(job_field JobState)
  if [[ $state != RUNNING ]]; then
    say "not put back into the queue: it is $state"
    return 0
  fi
  trap '' TERM  # to which it puts an end
  scontrol requeue "$SLURM_JOB_ID"
}

# Sets the name of this start's files in DEEPNET_LOG_DIR, a folder beside this job's log.
name_rank_files() {
  DEEPNET_LOG_DIR=${DEEPNET_LOG_DIR:-$(dirname "$(job_field StdOut)")/${SLURM_JOB_NAME}_$SLURM_JOB_ID}
  DEEPNET_START=$(date +%F_%H-%M-%S)
  export DEEPNET_LOG_DIR DEEPNET_START
  mkdir -p "$DEEPNET_LOG_DIR"
}

# rank_code RANK: the exit code of that rank in this start; nothing where it has not ended, or never began.
rank_code() {
  sed -n '$s/.* ended with code \([0-9]*\)$/\1/p' "$DEEPNET_LOG_DIR/${DEEPNET_START}_rank-$1.log" 2> /dev/null || true
}

# Starts the program on all tasks and sets `code` to its exit code. The launcher's is not always that: it is 0 where
# Slurm could not start the ranks, on a node where an earlier step of this job has not been cleaned up for example,
# and that of a killed rank where the others had left with 75 already.
run_once() {
  code=0
  name_rank_files
  say "$SLURM_NTASKS ranks on $SLURM_JOB_NODELIST: ${launcher[*]} $deepnet $*"
  pass_signals "${launcher[@]}" "$DEEPNET_HOME/launch/slurm/rank.sh" "${container[@]}" "$deepnet" "$@" || code=$?
  case $(rank_code 0) in
    75) code=75 ;;
    '') [[ $code -ne 0 ]] || code=$not_started ;;
  esac
}

# run_ranks SUBCOMMAND ARGUMENT...: runs the program on all tasks, and ends this job.
run_ranks() {
  local launcher code tries not_started=9
  choose_launcher
  set_end_time
  for tries in 1 2 3; do
    run_once "$@"
    [[ $code -eq $not_started && -z $(rank_code 0) && $tries -lt 3 ]] || break
    say "the ranks were not started; trying again"
    trap '' USR1 USR2  # nobody is there to save
    sleep 5
  done
  say "ended with code $code"
  [[ $code -ne 75 ]] || requeue || say "cannot be put back into the queue: submit it again"
  exit "$code"
}
