#!/usr/bin/env bash
# Fetches LibTorch 2.11.0 (headers and libraries of the PyPI wheel) into the user's cache folder.
#
#   launch/fetch_libtorch.sh [--cuda | --cuda-toolkit | --cuda-headers] [--help]
#
#   --cuda           also libtorch_cuda.so and the NVIDIA libraries it needs that a CUDA 13 toolkit
#                    lacks
#   --cuda-toolkit   as --cuda, and a CUDA 13.0 toolkit too: compiler, headers and libraries, in
#                    nvidia/cu13 of the target, where builds with CUDA look first
#   --cuda-headers   instead of LibTorch the headers of CUDA 13.0, cuBLAS and NCCL, which the emulated
#                    GPU of the tests needs where there is no toolkit; into deepnet/cuda-headers-13.0
#                    of the cache folder (0.6 GB are downloaded for 20 MB)
#
# Target: ${XDG_CACHE_HOME:-~/.cache}/deepnet/libtorch-2.11.0, holding torch/ and nvidia/ side by
# side, where the build looks. A folder that is already complete is left as it is. The folder appears
# under its name only when complete, so an interrupted run leaves nothing that looks usable.
# libtorch_wheels.txt, beside this script, pins every wheel by its SHA-256.
# Needs Linux on x86-64 or arm64, python3 >= 3.9 with pip (or venv); no root.
set -euo pipefail
export LC_ALL=C

list=$(dirname "$0")/libtorch_wheels.txt  # what is downloaded, by version and hash
version=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$list")
want_cuda=no
want_toolkit=no
headers_only=no
case "${1:-}" in
  "") ;;
  --cuda) want_cuda=yes ;;
  --cuda-toolkit) want_cuda=yes want_toolkit=yes ;;
  --cuda-headers) headers_only=yes ;;
  --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
  *) echo "fetch_libtorch.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
esac

# libtorch_cpu.so itself needs the runtime and CUPTI, though it never calls a device.
wheels=(torch nvidia-cuda-runtime nvidia-cuda-cupti)
[[ $want_cuda == no ]] || wheels+=(nvidia-cudnn-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13
  nvidia-cusparselt-cu13 nvidia-cufile)
[[ $want_toolkit == no ]] || wheels+=(nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-cccl
  nvidia-cuda-nvrtc nvidia-nvjitlink nvidia-cublas nvidia-cufft nvidia-curand nvidia-cusparse nvidia-nvtx)

target=${XDG_CACHE_HOME:-$HOME/.cache}/deepnet/libtorch-$version
what="LibTorch $version"
if [[ $headers_only == yes ]]; then
  wheels=(nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl nvidia-cublas nvidia-nccl-cu13)
  target=$(dirname "$target")/cuda-headers-13.0
  what="CUDA's headers"
fi
has_headers() { [[ -f $target/include/cuda_runtime.h && -f $target/include/nccl.h ]]; }
has_cpu() { [[ -f $target/torch/lib/libtorch_cpu.so && -d $target/torch/include/ATen ]]; }
has_cuda() { [[ $want_cuda == no || -f $target/torch/lib/libtorch_cuda.so ]]; }
has_toolkit() { [[ $want_toolkit == no || -x $target/nvidia/cu13/bin/nvcc ]]; }
if { [[ $headers_only == yes ]] && has_headers; } || { has_cpu && has_cuda && has_toolkit; }; then
  echo "$what: already in $target"
  exit 0
fi

mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$target.XXXXXX")
trap 'rm -rf "$work"' EXIT

# -I: without it Python takes modules from the folder that this was called in, whose ever that is.
# A distribution's python3 may come without pip: then one from a throw-away environment.
pip=(python3 -I -m pip)
if ! "${pip[@]}" --version >/dev/null 2>&1; then
  python3 -I -m venv "$work/venv"
  pip=("$work/venv/bin/python3" -I -m pip)
fi

# Versions and hashes: one requirement of the list a name.
for wheel in "${wheels[@]}"; do
  sed -n "/^$wheel==/,/[^\\]\$/p" "$list" >>"$work/requirements"
done

# The wheel is chosen for Python 3.11 whatever the local one: only its C++ half is used.
machine=$(uname -m)
platforms=(--platform "manylinux2014_$machine")
for glibc in $(seq 17 28); do
  platforms+=(--platform "manylinux_2_${glibc}_$machine")
done
"${pip[@]}" download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
  --only-binary=:all: --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none \
  "${platforms[@]}" --dest "$work/wheels" --require-hashes -r "$work/requirements"

python3 -I - "$work/wheels" "$work/unpacked" "$want_cuda" "$headers_only" <<'PY'
"""Unpacks what a C++ build needs: torch/include, torch/lib and nvidia/, or include/ alone."""
import pathlib, re, sys, zipfile

wheels, out, want_cuda = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "yes"
if sys.argv[4] == "yes":
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                header = re.match(r"nvidia/\w+/(include/.*[^/])$", name)
                if header:
                    path = pathlib.Path(out, header[1])
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.read(name))
    sys.exit()
# torch/include/google holds an old protobuf that would be found before the system's.
unwanted = re.compile(r"torch/include/google/|torch/lib/libtorch_python")
cuda_only = re.compile(r"torch/lib/lib(torch_cuda|torch_nvshmem|c10_cuda|caffe2_nvrtc)")
for wheel in sorted(wheels.glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not re.match(r"torch/(include|lib)/|nvidia/", name) or unwanted.match(name):
                continue
            if want_cuda or not cuda_only.match(name):
                archive.extract(name, out)
PY

if [[ $want_toolkit == yes ]]; then
  # Wheels lack the links that a linker looks for, and Python extracts no modes.
  cd "$work/unpacked/nvidia/cu13"
  chmod -R +x bin nvvm/bin
  for library in lib/*.so.*; do ln -sf "$(basename "$library")" "${library%.so.*}.so"; done
  ln -s lib lib64  # where nvcc looks
  cd - >/dev/null
fi
rm -rf "$target"
mv "$work/unpacked" "$target"
echo "$what: $(du -sh "$target" | cut -f1) in $target"
