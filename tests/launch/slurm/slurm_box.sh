#!/usr/bin/env bash
# A Slurm cluster of pretend nodes on one Linux machine. Every node is a host of tests/mpi/testhosts.sh, so its
# name and its network are its own, with a slurmd in it; slurmctld runs on the first.
#
#   tests/launch/slurm/slurm_box.sh up N          starts munged, slurmctld and N slurmd, until all are idle
#   tests/launch/slurm/slurm_box.sh run CMD...    runs CMD (sbatch, scontrol ...) on the first node
#   tests/launch/slurm/slurm_box.sh release JOB   starts a requeued job now; Slurm would hold it
#   tests/launch/slurm/slurm_box.sh fail NODE     cuts a node off and kills what runs there; back NODE
#   tests/launch/slurm/slurm_box.sh down          ends all of it (safe to repeat)
#
# Needs root and Debian's slurmctld, slurmd, slurm-client and munge. Environment: SB_DIR, the folder of its state
# (needed), SB_CONF, more lines for slurm.conf, and what testhosts.sh takes.
set -euo pipefail
export LC_ALL=C
here=$(dirname "$(readlink -f "$0")")
hosts=$here/../../mpi/testhosts.sh
dir=${SB_DIR:?names the folder of the state}
export TH_PREFIX=${TH_PREFIX:-n} TH_NET=${TH_NET:-10.76.0} SLURM_CONF=$dir/slurm.conf
first=${TH_PREFIX}1

write_conf() {  # N
  # Nodes share the machine: no cgroups, no binding, and a temporary folder each, where Slurm's PMIx plugin
  # makes folders of one name. A dead node is noticed after 10 s, SIGKILL follows SIGTERM after 5 s, and a requeued job
  # is held for as long as a credential lasts: 15 s instead of 2 minutes.
  cat <<TEXT
ClusterName=box
SlurmctldHost=$first
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=15
StateSaveLocation=$dir/ctld
SlurmdSpoolDir=$dir/spool-%n
TmpFS=$dir/tmp-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SlurmctldTimeout=10
SlurmdTimeout=10
KillWait=5
MessageTimeout=5
TCPTimeout=2
ReturnToService=2
JobRequeue=1
SchedulerParameters=bf_interval=1,sched_min_interval=100000,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
${SB_CONF:-}
NodeName=${TH_PREFIX}[1-$1] CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9
TEXT
}

start_node() {  # NODE
  mkdir -p "$dir/spool-$1" "$dir/tmp-$1"
  rm -f "$dir/slurmd-$1.pid"
  "$hosts" exec "$1" slurmd -N "$1"
}

await_idle() {  # N: for 30 s at most
  local tries
  for ((tries = 0; tries < 150; ++tries)); do
    [[ $("$0" run sinfo -h -N -p main -o %t 2> /dev/null | grep -c '^idle$') != "$1" ]] || return 0
    sleep 0.2
  done
  echo "slurm_box.sh: not all nodes are idle; see the logs in $dir" >&2
  return 1
}

up() {  # N
  local i
  [[ ! -e $SLURM_CONF ]] || { echo "slurm_box.sh: already up in $dir" >&2; exit 2; }
  mkdir -p "$dir/ctld" "$dir/munge"
  chmod 755 "$dir" "$dir/munge"
  write_conf "$1" > "$SLURM_CONF"
  # Without a name slurmd looks for one in a file system that is not mounted in a pretend host.
  echo CgroupPlugin=cgroup/v1 > "$dir/cgroup.conf"
  "$hosts" up "$1"
  head -c 128 /dev/urandom > "$dir/munge/key"
  chmod 600 "$dir/munge/key"
  munged --force --num-threads=2 --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
    --pid-file="$dir/munge/pid" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" 2> "$dir/munge/err"
  "$hosts" exec "$first" slurmctld -c
  for ((i = 1; i <= $1; ++i)); do start_node "$TH_PREFIX$i"; done
  await_idle "$1"
}

down() {
  local file pids=()
  for file in "$dir"/slurmd-*.pid "$dir/slurmctld.pid" "$dir/munge/pid"; do
    [[ ! -s $file ]] || pids+=("$(cat "$file")")
  done
  [[ ${#pids[@]} -eq 0 ]] || kill -KILL "${pids[@]}" 2> /dev/null || true
  "$hosts" down
  rm -rf "$dir"
}

# A job is pending while nodes still clean up after its former start, and a new one would fail there: Slurm
# holds it. Within a second after it was requeued its credential counts as revoked, too. Nothing is left to do
# where the time of that has passed and the job has started by itself.
release() {  # JOB
  local tries pid
  for ((tries = 0; tries < 300; ++tries)); do
    sleep 0.2
    "$0" run scontrol show job "$1" | grep -q '^ *JobState=PENDING ' || return 0
    pid=$(for host in "$dir"/spool-*; do "$hosts" pids "${host##*-}" slurmstepd; done |
      while read -r pid; do grep -qs "\[$1\." "/proc/$pid/cmdline" && echo "$pid"; done) || true
    [[ -n $pid ]] || break
  done
  sleep 1
  "$0" run scontrol update "JobId=$1" StartTime=now
}

command=${1:-help}
shift || true
case $command in
  up) up "$1" ;;
  run) exec "$hosts" exec "$first" "$@" ;;
  release) release "$1" ;;
  fail)
    "$hosts" cut "$1"
    for pid in $("$hosts" pids "$1"); do kill -KILL "$pid" 2> /dev/null || true; done ;;
  back) "$hosts" mend "$1"; start_node "$1" ;;
  down) down ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
esac
