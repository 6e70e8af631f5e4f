#!/usr/bin/env bash
# Makes one archive that runs on a machine without root, compiler, Debian or LibTorch.
#
#   launch/bundle.sh [--preset release|cuda] [--out FILE.tar.gz]
#
#   --preset   what is built, default release; cuda: with CUDA's libraries
#   --out      default: deepnet-VERSION-linux-x86_64[-cuda].tar.gz
#
# Prints the largest files in it. On the other machine:
#
#   tar -xf deepnet-*.tar.gz && deepnet-*/bin/deepnet --version
#
# A site's own Open MPI (libmpi.so.40) is taken where there is one (launch/bundle_libraries.sh);
# without any, ranks that torchrun, srun or Kubernetes start talk over TCP.
set -euo pipefail
export LC_ALL=C
[[ ${1:-} != --help ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0; }
cd "$(dirname "$0")/.."

preset=release
out=
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift ;;
    --out) out=${2:?--out needs a file}; shift ;;
    *) echo "bundle.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

launch/build.sh --preset "$preset" deepnet
version=$("build/$preset/deepnet" --version | awk 'NR == 1 {print $2}')
name=deepnet-$version-linux-$(uname -m)
[[ $preset == release ]] || name=$name-$preset
out=${out:-$name.tar.gz}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "build/$preset" --prefix "$work/$name" >/dev/null
ln -s share/deepnet/README.md "$work/$name/README.md"
tar -C "$work" --owner 0 --group 0 --sort name -cf - "$name" | gzip -1 >"$out"
echo "the largest files, MiB:"
(cd "$work" && find "$name" -type f -size +4M -printf '%s %p\n') | sort -rn | head -n 20 |
  awk '{printf "%8.1f  %s\n", $1 / 1048576, $2}'
echo "$out: $(($(stat -c %s "$out") / 1048576)) MiB, unpacked $(du -sm "$work/$name" | cut -f 1) MiB"
