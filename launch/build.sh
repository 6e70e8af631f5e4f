#!/usr/bin/env bash
# Configures a preset if needed and builds it.
#
#   launch/build.sh [--preset NAME] [TARGET...]      default: release, everything
#
# Found without being named: LibTorch in the user's cache folder (launch/fetch_libtorch.sh), the rest
# where the system has it. Elsewhere: environment variables
#   DEEPNET_TORCH_ROOT   folder with LibTorch's include/ and lib/
#   DEEPNET_MPI_ROOT     prefix of the MPI to link (bin/mpicc, include/mpi.h); without any MPI the
#                        program is built all the same, and ranks are threads of one process
#   CMAKE_PREFIX_PATH    prefixes of protobuf, abseil, GoogleTest, ..., separated by colons
#   PKG_CONFIG_PATH      folders with sentencepiece.pc, libzstd.pc and libsodium.pc
set -euo pipefail
export LC_ALL=C
[[ ${1:-} != --help ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0; }
cd "$(dirname "$0")/.."

preset=release
if [[ ${1:-} == --preset ]]; then
  preset=${2:?--preset needs a name}
  shift 2
fi

options=()
[[ -z ${DEEPNET_TORCH_ROOT:-} ]] || options+=("-DDEEPNET_TORCH_ROOT=$DEEPNET_TORCH_ROOT")
[[ -z ${DEEPNET_MPI_ROOT:-} ]] || options+=("-DDEEPNET_MPI_ROOT=$DEEPNET_MPI_ROOT")
command -v ninja >/dev/null || options+=(-G "Unix Makefiles")
cmake --preset "$preset" "${options[@]}"

# A LibTorch file takes up to 1.5 GB to compile.
memory_kb=$(awk '/^MemAvailable/ {print $2; found = 1} END {exit !found}' /proc/meminfo 2>/dev/null || echo 4000000)
jobs=$(nproc 2>/dev/null || echo 2)
fitting=$((memory_kb / 1500000))
[[ $jobs -le $fitting ]] || jobs=$((fitting > 0 ? fitting : 1))
cmake --build "build/$preset" --parallel "$jobs" ${1:+--target "$@"}
