#!/usr/bin/env bash
# Makes a wheel: `pip install FILE` brings the command deepnet into a Python environment, on that environment's PyTorch.
#
#   launch/wheel.sh [--preset release|cuda] [--with-device-tests] [--out FOLDER]
#
#   --preset              what is built; default: cuda where nvcc is found, else release
#   --with-device-tests   with the tests of kernels for GPUs, which tests/gpu/first_hour.sh then runs there
#   --out                 where deepnet-VERSION-py3-none-manylinux_GLIBC_MACHINE.whl goes; default: here
#
# A wheel of preset cuda has kernels for sm_80, sm_90 and sm_100 and PTX for later ones, and is the
# program for CPUs where there is no GPU. It depends on torch of the release that it is linked with, whose
# libraries, NVIDIA's among them, it takes by paths relative to itself; all others but glibc's are inside,
# Open MPI's as in launch/bundle_libraries.sh. On the other machine:
#
#   pip install deepnet-*.whl && deepnet --version
#
# Recipes, scripts and documentation lie in share/deepnet of the environment, man pages in share/man.
# Needs patchelf; for preset cuda a CUDA 13 toolkit and `launch/fetch_libtorch.sh --cuda`.
set -euo pipefail
export LC_ALL=C
[[ ${1:-} != --help ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0; }
out=$PWD
preset=
with_tests=no
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift ;;
    --with-device-tests) with_tests=yes ;;
    --out) out=$(realpath "${2:?--out needs a folder}"); shift ;;
    *) echo "wheel.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
cd "$(dirname "$0")/.."
source launch/stages.sh
if [[ -z $preset ]]; then
  preset=release
  ! has_nvcc || preset=cuda
fi

targets=(deepnet)
[[ $with_tests == no ]] || targets+=(tests/gpu/all tests/gpu/kernels/all)
launch/build.sh --preset "$preset" "${targets[@]}"
program=build/$preset/deepnet
version=$("$program" --version | awk 'NR == 1 {print $2}')
torch=$(ldd "$program" | awk '$1 == "libtorch_cpu.so" {print $3}')
torch=$(sed -nE 's/^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) //p' "${torch%/lib/*}/include/torch/headeronly/version.h" |
  paste -sd.)
glibc=$(getconf GNU_LIBC_VERSION)  # "glibc 2.36"
glibc=${glibc#glibc }
tag=py3-none-manylinux_${glibc/./_}_$(uname -m)

# What pip puts beside torch is in deepnet/, what goes below the environment's folder in .data/data.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "build/$preset" --prefix "$work/deepnet" --component Unspecified >/dev/null
if [[ $with_tests == yes ]]; then
  find "build/$preset/tests/gpu" -name 'gpu_*_test' -type f -perm -u+x |
    xargs cp -t "$work/deepnet/bin"
fi
launch/bundle_libraries.sh --beside-torch "$work/deepnet"
sed "s/@torch@/$torch/" launch/wheel_command.py >"$work/deepnet/__init__.py"
mkdir -p "$work/deepnet-$version.data/data" "$work/deepnet-$version.dist-info"
mv "$work/deepnet/share" "$work/deepnet-$version.data/data/share"
cp LICENSE "$work/deepnet-$version.dist-info"
cd "$work/deepnet-$version.dist-info"
cat >METADATA <<END
Metadata-Version: 2.1
Name: deepnet
Version: $version
Summary: A distributed trainer for very deep translation Transformers
Requires-Python: >=3.10
Requires-Dist: torch==$torch

The command deepnet; its documentation is share/deepnet/README.md of the environment.
END
cat >WHEEL <<END
Wheel-Version: 1.0
Generator: launch/wheel.sh
Root-Is-Purelib: false
Tag: $tag
END
printf '[console_scripts]\ndeepnet = deepnet:main\n' >entry_points.txt

python3 -I - "$work" "$out/deepnet-$version-$tag.whl" "deepnet-$version.dist-info/RECORD" <<'PY'
"""Packs a folder as a wheel: the same bytes from the same files."""
import base64, hashlib, os, pathlib, sys, zipfile

work, out, record = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
lines = []


def add(archive, name, data, mode):
    entry = zipfile.ZipInfo(name)  # of 1980
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100755 if mode & 0o100 else 0o100644) << 16
    archive.writestr(entry, data, compresslevel=9)


with zipfile.ZipFile(out, "w") as archive:
    for path in sorted(path for path in work.rglob("*") if path.is_file()):
        name, data = path.relative_to(work).as_posix(), path.read_bytes()
        add(archive, name, data, path.stat().st_mode)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    add(archive, record, "".join(lines) + f"{record},,\n", 0)
print(f"{out}: {os.path.getsize(out) / 1e6:.1f} MB")
PY
