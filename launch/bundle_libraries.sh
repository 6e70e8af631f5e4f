#!/usr/bin/env bash
# Copies the libraries of PREFIX/bin/deepnet into PREFIX/lib/deepnet and makes all run paths relative.
#
#   launch/bundle_libraries.sh PREFIX
#
# Left out are glibc's, which belong to the system. Open MPI's lie apart, in lib/deepnet/mpi, and are
# found last: a site's libmpi.so.40 is taken from LD_LIBRARY_PATH, as environment modules set it, or
# from where Debian and Fedora put theirs. `cmake --install` calls this.
set -euo pipefail
[[ ${1:-} != --help ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0; }
prefix=$1
program=$prefix/bin/deepnet
libraries=$prefix/lib/deepnet
command -v patchelf >/dev/null || { echo "error: patchelf is missing (apt-get install patchelf)" >&2; exit 1; }

is_of_glibc() { [[ $1 =~ ^(ld-linux|libc|libm|libdl|librt|libpthread|libutil|libresolv|libmvec|libanl)[-.] ]]; }
# What only MPI needs lies apart: a site's MPI brings its own.
is_of_mpi() { [[ $1 =~ ^lib(mpi|open-rte|open-pal|hwloc|event_core|event_pthreads|udev)[-.] ]]; }

mkdir -p "$libraries/mpi"
# With CUDA, LibTorch opens one library itself, through which it asks for the driver. The driver's
# libcuda.so.1 is the other machine's own.
cuda=$(ldd "$program" | awk '$1 == "libtorch_cuda.so" {print $3}')
roots=("$program")
[[ -z $cuda ]] || roots+=("${cuda%/*}/libcaffe2_nvrtc.so")
needed=$(ldd "${roots[@]}" | grep -v 'libcuda\.so')
missing=$(awk '/not found/ {print $1}' <<<"$needed")
[[ -z $missing ]] || { echo "error: $program: not found: $missing" >&2; exit 1; }
while read -r name path; do
  is_of_glibc "$name" && continue
  folder=$libraries
  is_of_mpi "$name" && folder=$libraries/mpi
  install -m 644 "$path" "$folder/$name"
  patchelf --set-rpath '$ORIGIN' "$folder/$name"
done < <({
  awk '$2 == "=>" {print $1, $3}' <<<"$needed"
  for path in "${roots[@]:1}"; do echo "${path##*/} $path"; done
} | sort -u)
site=/usr/lib/$(uname -m)-linux-gnu:/usr/lib64/openmpi/lib:/usr/lib64
patchelf --set-rpath '$ORIGIN/../lib/deepnet:'"$site"':$ORIGIN/../lib/deepnet/mpi' "$program"
