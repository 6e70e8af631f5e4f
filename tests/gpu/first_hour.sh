#!/usr/bin/env bash
# The first hour on a machine with GPUs: doctor, device tests, the parity of layouts, benchmarks; and a page for
# docs/benchmarks with what was measured beside what is predicted. A part that fails is listed and does not stop
# the others; exit status 1 then.
#
#   tests/gpu/first_hour.sh [FOLDER] [PAGE]
#
# FOLDER: built with preset cuda (default build/cuda: cmake --preset cuda && cmake --build --preset cuda),
# or with preset emulated, which rehearses all of this without a GPU. In share/deepnet of an installation: where logs
# go (default: deepnet_gpu). PAGE: default gpu_<date>.md in that folder. Logs and JSON stay in FOLDER/first_hour.
#
# Environment: FIRST_HOUR_TINY=1 for shapes of seconds, as a rehearsal wants them. MPIEXEC as in tests/mpi/mpirun.sh.
set -euo pipefail
export LC_ALL=C
case ${1:-} in --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac

[[ -z ${2:-} ]] || set -- "$1" "$(realpath -m "$2")"
name=first_hour
source "$(dirname "$0")/gpu_machine.sh"
page=${2:-$folder/gpu_$(date +%F).md}
tests='^gpu_|^nccl_communicator_test'

export MPIEXEC_TIMEOUT=${MPIEXEC_TIMEOUT:-3600}
shapes=("--shape A" "--shape B" "--shape C" "--shape D" "--shape A --width 512" "--shape A --width 1024")
steps=30 sentences=200 train_steps=50 width=256 layers=6 tokens=2000 step_more="" decode_more="" device_model=""
if [[ ${FIRST_HOUR_TINY:-} == 1 ]]; then
  shapes=("--width 16" "--width 32")
  steps=2 sentences=2 train_steps=4 width=16 layers=2 tokens=120
  step_more="--layers 1 --tokens 120" decode_more="--layers 1 --width 16"
  device_model="--device-model H100"  # the emulated GPU is in no table
  tests='^gpu_pointwise_kernels_test$'
fi

# shellcheck disable=SC2086  # words
bench() { limited "$program" bench "$@" $device_model --device cuda --json; }

# A rank has a GPU of its own: the program refuses to share one, as NCCL does.
gpus=1
if [[ $emulated == yes ]]; then
  gpus=4
elif command -v nvidia-smi >/dev/null; then
  gpus=$(nvidia-smi -L | grep -c '^GPU ') || gpus=1
fi

part "doctor" doctor limited "$program" doctor --set compute.device=cuda
[[ $gpus -lt 2 ]] || part "doctor, $gpus ranks" doctor_ranks ranks "$gpus" "$program" doctor --set compute.device=cuda
if has_device_tests; then
  part "device tests" tests device_tests "$tests"
else
  parts+=("| device tests | left out: this wheel has none | |")
fi
part "corpus" corpus corpus "$layers" "$width" "$tokens" "$train_steps"
part "parity: the CPU" parity_cpu layout 1 1 1 "" FLOAT32 cpu --set compute.device=cpu
for dtype in FLOAT32 BFLOAT16; do
  part "parity: 1 rank, $dtype" "parity_1_$dtype" layout 1 1 1 "" $dtype "one-$dtype"
  part "parity: 1 rank again, $dtype" "parity_again_$dtype" layout 1 1 1 "" $dtype "again-$dtype"
  [[ $gpus -lt 2 ]] || part "parity: 2 stages, $dtype" "parity_2x1_$dtype" layout 2 2 1 zb-h1 $dtype "two-$dtype"
  [[ $gpus -lt 2 ]] || part "parity: 2 replicas, $dtype" "parity_1x2_$dtype" layout 2 1 2 "" $dtype "replicas-$dtype"
  [[ $gpus -lt 4 ]] || part "parity: 2 x 2, $dtype" "parity_2x2_$dtype" layout 4 2 2 1f1b $dtype "four-$dtype"
done
if [[ $gpus -ge 2 ]]; then
  part "trace of two stages" trace layout 2 2 1 1f1b BFLOAT16 traced --trace "3..4"
else
  part "trace" trace layout 1 1 1 "" BFLOAT16 traced --trace "3..4"
fi
number=0
for shape in "${shapes[@]}"; do
  number=$((number + 1))
  # shellcheck disable=SC2086  # words
  part "bench step $shape" "step_$number.json" bench step $shape $step_more --steps $steps
  # shellcheck disable=SC2086
  part "bench kernels $shape" "kernels_$number.json" bench kernels $shape $step_more --steps 2
done
# shellcheck disable=SC2086
part "bench decode" decode.json bench decode $decode_more --sentences $sentences

[[ $gpus -ge 4 ]] || parts+=("| layouts of more ranks | left out: $gpus GPU(s) | |")
printf '%s\n' "${parts[@]}" >"$logs/parts"
{ [[ -z $installed ]] && git rev-parse --short HEAD 2>/dev/null || "$program" --version; } >"$logs/commit"
"$python" tests/gpu/first_hour_page.py "$logs" >"$page" || failed+=("parity, as the page says")
echo "page: $page"
[[ ${#failed[@]} -eq 0 ]] || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
