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

# run_ranks SUBCOMMAND ARGUMENT...: runs the program on all tasks, and ends this job.
run_ranks() {
  local launcher code=0
  choose_launcher
  set_end_time
  say "$SLURM_NTASKS ranks on $SLURM_JOB_NODELIST: ${launcher[*]} $deepnet $*"
  pass_signals "${launcher[@]}" "${container[@]}" "$deepnet" "$@" || code=$?
  say "ended with code $code"
  [[ $code -ne 75 ]] || requeue || say "cannot be put back into the queue: submit it again"
  exit "$code"
}
