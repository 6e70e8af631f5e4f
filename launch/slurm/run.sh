# shellcheck shell=bash
# The jobs of launch/slurm source this: it holds all that they share. They are submitted in the project's folder, or
# DEEPNET_HOME names it: sbatch copies a script away from where it lies.
set -euo pipefail
export LC_ALL=C
export DEEPNET_HOME=${DEEPNET_HOME:-$SLURM_SUBMIT_DIR}
# shellcheck source=launch/signals.sh
source "$DEEPNET_HOME/launch/signals.sh"
launcher=()
# shellcheck source=launch/slurm/site.sh
source "${DEEPNET_SITE:-$DEEPNET_HOME/launch/slurm/site.sh}"

restart=${SLURM_RESTART_COUNT:-0}

say() { printf '%(%F %T)T %s\n' -1 "$SLURM_JOB_NAME $SLURM_JOB_ID, restart $restart: $*"; }

# What is no number would be computed as an expression, where it is used.
for name in DEEPNET_RETRIES SLURM_NTASKS SLURM_JOB_NUM_NODES SLURM_ARRAY_TASK_{ID,COUNT,MIN,MAX}; do
  [[ ! -v $name || ${!name} =~ ^(0|[1-9][0-9]{0,8})$ ]] || { say "$name: '${!name}' is no number from 0 to 999999999"; exit 2; }
done

# job_field NAME [PATTERN]: what Slurm says of this job. The job's name, which may hold anything, stands in the first
# line, which is not indented.
job_field() {
  scontrol show job "$SLURM_JOB_ID" | sed -nE "s/^ +([^ =]+=[^ ]* )*$1=(${2:-[^ ]+}).*/\\2/p" | head -n 1
}

# Sets `launcher`, which takes `-n RANKS`, where the site does not: srun, with PMIx where Slurm has it. Without, ranks
# find each other by Slurm's own variables and talk by TCP.
choose_launcher() {
  local kind=none
  [[ ${#launcher[@]} -eq 0 ]] || return 0
  [[ " $(srun --mpi=list 2>&1 | tr '\n\t' '  ') " != *" pmix "* ]] || kind=pmix
  launcher=(srun "--mpi=$kind" --kill-on-bad-exit=1 --export=ALL)
  DEEPNET_JOB_SECRET=${DEEPNET_JOB_SECRET:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}
  export DEEPNET_JOB_SECRET
  # srun has a variable of its own: it inherits no --cpus-per-task of sbatch since Slurm 22.05.
  [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  # With the default, Slurm 22.05 lets a rank leave MPI_Init too early, and a peer crashes now and then.
  export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-tree}
}

# The program looks at this to save before the time limit; older Slurms do not set it.
set_end_time() {
  local end
  end=$(date -d "$(job_field EndTime)" +%s 2> /dev/null) || return 0
  export SLURM_JOB_END_TIME=${SLURM_JOB_END_TIME:-$end}
}

# Names this start's files, one a rank, in a folder beside this job's log.
name_rank_files() {
  rank_logs=$(realpath -m -- "${DEEPNET_LOG_DIR:-$(dirname "$(job_field StdOut '.+')")}")
  rank_logs+=/${SLURM_JOB_NAME}_${SLURM_JOB_ID}_ranks
  DEEPNET_RANK_LOG=$rank_logs/$(date +%F_%H-%M-%S)_rank-
  export DEEPNET_RANK_LOG
  mkdir -p "$rank_logs"
}

# Each ends with a zero byte: the name of a job may hold whatever else there is.
rank_files() { find "$rank_logs" -name "${DEEPNET_RANK_LOG##*/}*.log" -print0; }

# rank_code RANK: what its file ends with; nothing where the rank has not ended, or never began.
rank_code() { sed -n '$s/.* ended with code \([0-9]*\)$/\1/p' "$DEEPNET_RANK_LOG$1.log" 2> /dev/null || true; }

# Starts the program on all tasks and sets `code` to what its ranks say. The launcher's code is not always that: it
# is 0 where Slurm could not start the ranks, on a node that has not cleaned up after an earlier step of this job
# for example, and that of a killed rank where the others had left with 75 already.
run_once() {
  local said
  code=0
  name_rank_files
  say "$SLURM_NTASKS ranks on $SLURM_JOB_NODELIST: ${launcher[*]} $deepnet $*"
  pass_signals "${launcher[@]}" -n "$SLURM_NTASKS" "$DEEPNET_HOME/launch/slurm/rank.sh" \
    "${container[@]}" "$deepnet" "$@" || code=$?
  said=$(rank_code 0)
  if [[ $said == 75 || -z $said && $code -eq 0 ]]; then
    code=${said:-$lost}
  elif [[ $code -ge 128 ]]; then  # by a signal, which says less than what other ranks ended with
    code=$(rank_files | xargs -0r tail -qn 1 | sed -n 's/.* ended with code \([89]\)$/\1/p' | head -n 1)
    code=${code:-$lost}
  fi
}

# Says which nodes seem to have ended this start, a line each: of its ranks' files suspects.awk makes some, others
# are those that Slurm cannot reach and those where no rank began. Nothing where that is most of the nodes.
suspects() {
  local found
  found=$({
    rank_files | xargs -0r awk -v "nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")" \
      -f "$DEEPNET_HOME/launch/slurm/suspects.awk"
    sinfo --noheader --Node --nodes "$SLURM_JOB_NODELIST" --states down,fail,no_respond --format %N
  } | sort -u)
  [[ -z $found || $((2 * $(wc -l <<< "$found"))) -gt $SLURM_JOB_NUM_NODES ]] || echo "$found"
}

# Counts a failure and says if there may be another try. Failures count in a row: a start that lasted until it was
# told to stop begins anew.
may_retry() {  # CODE
  local file=$rank_logs/failures
  say "ended with code $1" >> "$file"
  [[ $(wc -l < "$file") -le ${DEEPNET_RETRIES:-3} ]]
}

# Puts this job back into the queue, under the same number, without the nodes named; Slurm counts how often. Not
# one that somebody cancelled: it would rise again.
requeue() {
  local state excluded
  state=$(job_field JobState)
  if [[ $state != RUNNING ]]; then
    say "not put back into the queue: it is $state"
    return 0
  fi
  excluded=$(job_field ExcNodeList)
  [[ $excluded != "(null)" ]] || excluded=
  trap '' TERM  # to which it puts an end
  scontrol requeue "$SLURM_JOB_ID" || { say "cannot be put back into the queue: submit it again"; return; }
  [[ $# -eq 0 ]] || scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$(IFS=, && echo "$*${excluded:+,$excluded}")"
}

# end_job CODE: puts the job back into the queue or not, and ends it.
end_job() {
  local nodes=()
  say "ended with code $1"
  case $1 in
    75)
      [[ -z $rank_logs ]] || rm -f "$rank_logs/failures"
      requeue ;;
    8 | 9)
      readarray -t nodes < <(suspects)
      if may_retry "$1"; then
        say "another try without: ${nodes[*]:-no node is suspected}"
        requeue "${nodes[@]}"
      else
        say "failed too often in a row (DEEPNET_RETRIES); suspected: ${nodes[*]:-no node}"
      fi ;;
  esac
  exit "$1"
}

# Sets `words` to the arguments. In an array {item} stands for the word of DEEPNET_ITEMS whose number, from 0 on, the
# task has.
fill_in_item() {
  local items
  read -ra items <<< "${DEEPNET_ITEMS:-}"
  words=("$@")
  [[ -n ${SLURM_ARRAY_TASK_ID:-} && $* == *"{item}"* ]] || return 0
  if [[ $SLURM_ARRAY_TASK_ID -ge ${#items[@]} ]]; then
    say "DEEPNET_ITEMS has no word $SLURM_ARRAY_TASK_ID, counted from 0: '${DEEPNET_ITEMS:-}'"
    exit 2
  fi
  words=("${@//'{item}'/"${items[SLURM_ARRAY_TASK_ID]}"}")
}

# run_ranks SUBCOMMAND ARGUMENT...: runs the program on all tasks, and ends this job.
run_ranks() {
  local rank_logs code tries words lost=9
  fill_in_item "$@"
  choose_launcher
  set_end_time
  for tries in 1 2 3; do
    run_once "${words[@]}"
    [[ $code -eq $lost && -z $(rank_files | tr '\0' '\n') && $tries -lt 3 ]] || break
    say "no rank was started; trying again"
    trap '' USR1 USR2  # nobody is there to save
    sleep 5
  done
  end_job "$code"
}

# run_lab EXPERIMENT ARGUMENT...: runs this array task's share of the experiment, and ends this job.
run_lab() {
  local share=0/1 rank_logs='' code=0
  if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    share=$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT
    # shellcheck disable=SC2153  # Slurm sets them
    if [[ $SLURM_ARRAY_TASK_MIN -ne 0 || $SLURM_ARRAY_TASK_MAX -ge $SLURM_ARRAY_TASK_COUNT ]]; then
      say "--array has to be 0-N without gaps: N + 1 tasks share the runs; those that are done are not done again"
      exit 2
    fi
  fi
  set -- launch/lab/lab.py run "$@" --share "$share" --program "$deepnet"
  choose_launcher
  [[ $SLURM_NTASKS -eq 1 ]] || set -- "$@" --launcher "${launcher[*]} -n {ranks}"
  set_end_time
  say "$*"
  pass_signals "$@" || code=$?
  [[ $code -eq 75 ]] || { say "ended with code $code"; exit "$code"; }
  end_job 75
}
