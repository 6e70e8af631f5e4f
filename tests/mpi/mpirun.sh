#!/usr/bin/env bash
# Runs a program as several ranks on this machine, however few its cores.
#
#   tests/mpi/mpirun.sh RANKS PROGRAM [ARGUMENT...]
#
# Environment: MPIEXEC, the launcher (default: mpirun). What is set for it here is Open MPI's, except
# the time limit, which others know too; what the caller has set stays.
set -euo pipefail
export LC_ALL=C
[[ ${1:-} != --help && $# -ge 2 ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
ranks=$1
shift

# More ranks than cores; none bound to one; root in a container.
export OMPI_MCA_rmaps_base_oversubscribe=${OMPI_MCA_rmaps_base_oversubscribe:-1}
export OMPI_MCA_hwloc_base_binding_policy=${OMPI_MCA_hwloc_base_binding_policy:-none}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export MPIEXEC_TIMEOUT=${MPIEXEC_TIMEOUT:-300}
exec "${MPIEXEC:-mpirun}" -n "$ranks" "$@"
