#!/usr/bin/env bash
# Copies the libraries of the programs in PREFIX/bin into PREFIX/lib/deepnet, makes all run paths relative
# and strips the programs.
#
#   launch/bundle_libraries.sh [--beside-torch] PREFIX
#
#   --beside-torch   PREFIX will lie in a folder of Python's packages: LibTorch's and NVIDIA's
#                    libraries stay out and are those of the packages torch and nvidia beside it
#
# Left out are glibc's, which belong to the system. Open MPI's lie apart, in lib/deepnet/mpi, and are
# found last: a site's libmpi.so.40 is taken from LD_LIBRARY_PATH, as environment modules set it, or
# from where Debian and Fedora put theirs. `cmake --install` and launch/wheel.sh call this.
set -euo pipefail
export LC_ALL=C
[[ ${1:-} != --help ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0; }
beside=
if [[ ${1:-} == --beside-torch ]]; then
  beside=:'$ORIGIN/../../torch/lib:$ORIGIN/../../nvidia/cu13/lib:$ORIGIN/../../nvidia/nccl/lib'
  shift
fi
prefix=${1:?needs a prefix (see --help)}
programs=("$prefix"/bin/*)
libraries=$prefix/lib/deepnet
command -v patchelf >/dev/null || { echo "error: patchelf is missing (apt-get install patchelf)" >&2; exit 1; }

is_of_glibc() { [[ $1 =~ ^(ld-linux|libc|libm|libdl|librt|libpthread|libutil|libresolv|libmvec|libanl)[-.] ]]; }
# What only MPI needs lies apart: a site's MPI brings its own.
is_of_mpi() { [[ $1 =~ ^lib(mpi|open-rte|open-pal|hwloc|event_core|event_pthreads|udev)[-.] ]]; }
is_of_torch() { [[ $1 =~ ^lib(torch|c10|gomp|caffe2|cu|nccl|nv) ]]; }

mkdir -p "$libraries/mpi"
# With CUDA, LibTorch opens one library itself, through which it asks for the driver. The driver's
# libcuda.so.1 is the other machine's own.
cuda=$(ldd "${programs[@]}" | awk '$1 == "libtorch_cuda.so" {path = $3} END {print path}')
opened=()
[[ -z $cuda ]] || opened=("${cuda%/*}/libcaffe2_nvrtc.so")
needed=$(ldd "${programs[@]}" "${opened[@]}" | grep -v 'libcuda\.so')
missing=$(awk '/not found/ {print $1}' <<<"$needed")
[[ -z $missing ]] || { echo "error: ${programs[*]}: not found: $missing" >&2; exit 1; }
while read -r name path; do
  is_of_glibc "$name" && continue
  [[ -n $beside ]] && is_of_torch "$name" && continue
  folder=$libraries
  is_of_mpi "$name" && folder=$libraries/mpi
  install -m 644 "$path" "$folder/$name"
  patchelf --set-rpath '$ORIGIN' "$folder/$name"
done < <({
  awk '$2 == "=>" {print $1, $3}' <<<"$needed"
  for path in "${opened[@]}"; do echo "${path##*/} $path"; done
} | sort -u)
site=/usr/lib/$(uname -m)-linux-gnu:/usr/lib64/openmpi/lib:/usr/lib64
strip "${programs[@]}"  # before: strip does not keep what patchelf moved
patchelf --set-rpath '$ORIGIN/../lib/deepnet'"$beside:$site"':$ORIGIN/../lib/deepnet/mpi' "${programs[@]}"
