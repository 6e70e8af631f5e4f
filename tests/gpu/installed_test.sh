#!/usr/bin/env bash
# The rehearsal of speed.sh and first_hour.sh from an installation: without the repository, with a program that has the
# emulated GPU in the place of the wheel's, and ranks without MPI.
#
#   tests/gpu/installed_test.sh BUILD_FOLDER
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build=$(realpath "$1")

cmake --install "$build" --prefix "$work/env" --component Unspecified >/dev/null
ln -sf "$build/tests/gpu/deepnet_on_emulated_gpu" "$work/env/bin/deepnet"
if [[ -x build/peers/bin/python ]]; then  # of tests/peers/run.sh
  printf '#!/bin/sh\nexec "%s" "$@"\n' "$PWD/build/peers/bin/python" >"$work/env/bin/python3"
  chmod +x "$work/env/bin/python3"
fi
mkdir "$work/bin"
printf '#!/bin/sh\necho stand-in\n' >"$work/bin/nvidia-smi"
printf '#!/bin/sh\nexit 1\n' >"$work/bin/mpirun"
chmod +x "$work"/bin/*
scripts=$work/env/share/deepnet/tests/gpu
cd "$work"  # where logs go
export PATH=$work/bin:$PATH

has() {  # FILE REGEXP...
  local wanted
  for wanted in "${@:2}"; do grep -Eq -- "$wanted" "$1" || { cat "$1" >&2; echo "missing: $wanted" >&2; exit 1; }; done
}

SPEED_TINY=1 "$scripts/speed.sh" >speed || { cat speed; tail -n 3 deepnet_gpu/speed/*.err; exit 1; }
row='[0-9,]+ \| [0-9.]+ \| [0-9.]+ % \| [0-9]+ \| [0-9.]+ \|'
has speed '^doctor +ok' "^\| 6, 512, 8192 \| $row" "^\| 6, 512, 8192, 8 microbatches \| $row" \
  "^\| 500, 512, 4096 \| $row" '^decode: [0-9,]+ sentences/s' '^weights: one ([0-9a-f]{16}), again \1, graphs \1$'
[[ ! -x env/bin/python3 ]] || has speed "$row packed [0-9,]+, padded [0-9,]+, padded-compiled [0-9,]+ \\|"
tar -tzf deepnet_gpu/speed.tgz | grep -q step-6_512_8192.json

FIRST_HOUR_TINY=1 "$scripts/first_hour.sh" >hour || { cat hour; tail -n 3 deepnet_gpu/first_hour/*.err; exit 1; }
has deepnet_gpu/gpu_*.md '^\| doctor, 4 ranks \| ok \|' 'device tests \| left out' \
  '^FLOAT32: 5 runs, 1 weights; .*: as it must be\.$' '^BFLOAT16: 5 runs, 1 weights; .*: as it must be\.$'
