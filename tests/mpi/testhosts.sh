#!/usr/bin/env bash
# Pretend hosts on one Linux machine, for tests of what crosses a network.
#
#   tests/mpi/testhosts.sh up N             make hosts h1..hN
#   tests/mpi/testhosts.sh down             kill what still runs in them, remove them (safe to repeat)
#   tests/mpi/testhosts.sh exec HOST CMD... run CMD on HOST (stdin, stdout, exit code pass through)
#   tests/mpi/testhosts.sh mpirun ARGS...   mpirun from the first host, one rank each, over TCP
#   tests/mpi/testhosts.sh with N ARGS...   up N, mpirun ARGS..., down; the exit code is mpirun's
#   tests/mpi/testhosts.sh rate HOST RATE   limit both directions, for example to 1gbit; norate HOST
#   tests/mpi/testhosts.sh cut HOST         unplug the cable; mend HOST
#   tests/mpi/testhosts.sh part HOST HOST   lose all packets between the two, silently, until down
#   tests/mpi/testhosts.sh freeze HOST      SIGSTOP for all its processes; thaw HOST
#   tests/mpi/testhosts.sh pids HOST [NAME]
#
# Each host is a network namespace with its own host name, one interface eth0 and its own /etc/hosts,
# joined to the others by a bridge. The bridge sits in a namespace of its own, so no packet of a test
# can leave the machine. All hosts share the file system. Needs root, iproute2, util-linux.
#
# Environment: TH_PREFIX (default h; one set of hosts per prefix, so tests can run side by side),
# TH_NET (default 10.77.0; the first three bytes), TH_DIR (state; default a folder of the prefix in
# TMPDIR), TH_SLOTS (ranks per host), MPIEXEC (default mpirun).
set -euo pipefail
export LC_ALL=C
prefix=${TH_PREFIX:-h}
net=${TH_NET:-10.77.0}
temp=${TMPDIR:-$(dirname "$(mktemp -u)")}
dir=${TH_DIR:-$temp/testhosts.$prefix}
self=$(readlink -f "$0")
switch=$prefix-switch

die() { echo "testhosts: $*" >&2; exit 2; }
hosts() { if [[ -f $dir/hosts ]]; then cat "$dir/hosts"; fi; }
need() { grep -qxF -- "$1" "$dir/hosts" 2>/dev/null || die "no host '$1'"; }
port() { echo "p${1#"$prefix"}"; }
pids() { ip netns pids "$1" 2>/dev/null || true; }

enter() {  # HOST CMD...: becomes CMD on HOST
  local host=$1
  shift
  exec ip netns exec "$host" nsenter --uts="$dir/$host.uts" -- "$@"
}

add_host() {  # NUMBER
  local host=$prefix$1
  ip netns add "$host"
  echo "$host" >>"$dir/hosts"
  mkdir -p "/etc/netns/$host"  # ip netns exec binds what is there over /etc
  cp "$dir/etc_hosts" "/etc/netns/$host/hosts"
  : >"$dir/$host.uts"
  unshare --uts="$dir/$host.uts" hostname "$host"  # a UTS namespace that outlives the command
  ip -n "$switch" link add "p$1" type veth peer name eth0 netns "$host"
  ip -n "$host" link set lo up
  ip -n "$switch" link set "p$1" master br0 up
  ip -n "$host" addr add "$net.$1/24" dev eth0
  ip -n "$host" link set eth0 up
}

up() {
  local count=${1:?up N} i
  [[ ! -e $dir/hosts ]] || die "already up in $dir: 'down' first"
  mkdir -p "$dir"
  : >"$dir/hosts"
  trap 'down; die "up failed"' ERR
  ip netns add "$switch"
  ip -n "$switch" link add br0 type bridge forward_delay 0
  ip -n "$switch" link set br0 up
  {
    echo "127.0.0.1 localhost"
    for ((i = 1; i <= count; ++i)); do echo "$net.$i $prefix$i"; done
  } >"$dir/etc_hosts"
  for ((i = 1; i <= count; ++i)); do add_host "$i"; done
  trap - ERR
}

down() {
  local host pid tries
  for host in $(hosts); do
    for pid in $(pids "$host"); do kill -KILL "$pid" 2>/dev/null || true; done
  done
  for host in $(hosts); do
    for ((tries = 0; tries < 50; ++tries)); do
      [[ -n $(pids "$host") ]] || break
      sleep 0.1
    done
    ip netns del "$host" 2>/dev/null || true
    umount "$dir/$host.uts" 2>/dev/null || true
    rm -rf "/etc/netns/$host" "$temp/ompi.$host."*
  done
  ip netns del "$switch" 2>/dev/null || true
  rmdir /etc/netns 2>/dev/null || true
  rm -rf "$dir"
}

# mpirun calls the agent as: AGENT [-x ...] HOST COMMAND-LINE. It stays on the calling host, as an
# ssh client does.
rsh() {
  while [[ $1 == -* ]]; do shift; done
  local host=$1 child code=0
  need "$host"
  shift
  (enter "$host" /bin/sh -c "$*") <&0 &
  child=$!
  trap 'kill -TERM $child 2>/dev/null; exit 143' TERM INT HUP
  wait $child || code=$?
  exit $code
}

# One machine pretends to be many: no binding to cores.
run_mpi() {
  local first
  first=$(hosts | head -n 1)
  [[ -n $first ]] || die "not up"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent="$self rsh" OMPI_MCA_ras=^slurm
  export OMPI_MCA_btl=${OMPI_MCA_btl:-tcp,self}
  export OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
  export OMPI_MCA_hwloc_base_binding_policy=none MPIEXEC_TIMEOUT=${MPIEXEC_TIMEOUT:-300}
  hosts | sed "s/\$/ slots=${TH_SLOTS:-1}/" >"$dir/hostfile"
  (enter "$first" "${MPIEXEC:-mpirun}" --hostfile "$dir/hostfile" "$@")
}

limit() {  # HOST RATE
  local end
  for end in "$1 eth0" "$switch $(port "$1")"; do
    # shellcheck disable=SC2086
    set -- "$1" "$2" $end
    tc -n "$3" qdisc replace dev "$4" root tbf rate "$2" burst 256kb latency 100ms
  done
}

unlimit() {  # HOST
  tc -n "$1" qdisc del dev eth0 root
  tc -n "$switch" qdisc del dev "$(port "$1")" root
}

# Neither asks for the other's address any more, so that none is told that there is no way.
part() {  # HOST HOST
  local host other
  for host in "$1" "$2"; do
    other=$1
    [[ $host != "$1" ]] || other=$2
    bridge -n "$switch" link set dev "$(port "$host")" isolated on
    ip -n "$host" neigh replace "$net.${other#"$prefix"}" dev eth0 nud permanent \
      lladdr "$(ip -n "$other" -brief link show eth0 | awk '{print $3}')"
  done
}

signal_all() {  # HOST SIGNAL
  local pid
  for pid in $(pids "$1"); do kill "-$2" "$pid" 2>/dev/null || true; done
}

command=${1:-help}
shift || true
case $command in
  up) up "$@" ;;
  down) down ;;
  exec) need "$1"; enter "$@" ;;
  rsh) rsh "$@" ;;
  mpirun) run_mpi "$@" ;;
  with)
    down
    up "$1"
    trap down EXIT
    run_mpi "${@:2}" ;;
  rate) need "$1"; limit "$@" ;;
  norate) need "$1"; unlimit "$1" ;;
  cut) need "$1"; ip -n "$switch" link set "$(port "$1")" down ;;
  part) need "$1"; need "$2"; part "$@" ;;
  mend) need "$1"; ip -n "$switch" link set "$(port "$1")" up ;;
  freeze) need "$1"; signal_all "$1" STOP ;;
  thaw) need "$1"; signal_all "$1" CONT ;;
  pids)
    need "$1"
    for pid in $(pids "$1"); do
      [[ -z ${2:-} || $(cat "/proc/$pid/comm" 2>/dev/null) == "$2" ]] && echo "$pid"
    done ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" ;;
esac
