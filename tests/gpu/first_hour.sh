#!/usr/bin/env bash
# The first hour on a machine with GPUs: doctor, device tests, the parity of layouts, benchmarks; and a page for
# docs/benchmarks with what was measured beside what is predicted. A part that fails is listed and does not stop
# the others; exit status 1 then.
#
#   tests/gpu/first_hour.sh [BUILD_FOLDER] [PAGE]
#
# BUILD_FOLDER: built with preset cuda (default build/cuda: cmake --preset cuda && cmake --build --preset cuda),
# or with preset emulated, which rehearses all of this without a GPU. PAGE: default gpu_<date>.md in that folder.
# Logs and JSON stay in BUILD_FOLDER/first_hour.
#
# Environment: FIRST_HOUR_TINY=1 for shapes of seconds, as a rehearsal wants them. MPIEXEC as in tests/mpi/mpirun.sh.
set -euo pipefail
case ${1:-} in --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac

cd "$(dirname "$0")/../.."
build=${1:-build/cuda}
page=${2:-$build/gpu_$(date +%F).md}
program=$build/deepnet
tests='^gpu_|^nccl_communicator_test'
if [[ -x $build/tests/gpu/deepnet_on_emulated_gpu ]]; then program=$build/tests/gpu/deepnet_on_emulated_gpu; fi
[[ -x $program ]] || { echo "$program: not there; build it first" >&2; exit 2; }

export MPIEXEC_TIMEOUT=${MPIEXEC_TIMEOUT:-3600}
rm -rf "$build/first_hour"
mkdir -p "$build/first_hour"
logs=$(cd "$build/first_hour" && pwd)
shapes=("--shape A" "--shape B" "--shape C" "--shape D" "--shape A --width 512" "--shape A --width 1024")
steps=30 sentences=200 train_steps=50 width=256 layers=6 tokens=2000 step_more="" decode_more="" device_model=""
if [[ ${FIRST_HOUR_TINY:-} == 1 ]]; then
  shapes=("--width 16" "--width 32")
  steps=2 sentences=2 train_steps=4 width=16 layers=2 tokens=120
  step_more="--layers 1 --tokens 120" decode_more="--layers 1 --width 16"
  device_model="--device-model H100"  # the emulated GPU is in no table
  tests='^gpu_pointwise_kernels_test$'
fi

failed=()
# part NAME LOG COMMAND...: runs it into $logs/LOG.
part() {
  local name=$1 log=$2 began=$SECONDS
  shift 2
  printf '%-44s ' "$name"
  if "$@" >"$logs/$log" 2>"$logs/$log.err"; then
    printf 'ok %6d s\n' $((SECONDS - began))
    parts+=("| $name | ok | $((SECONDS - began)) |")
  else
    printf 'FAILED, see %s.err\n' "$logs/$log"
    parts+=("| $name | **failed** | $((SECONDS - began)) |")
    failed+=("$name")
  fi
}
parts=()
ranks() { tests/mpi/mpirun.sh "$@"; }
# shellcheck disable=SC2086  # words
bench() { "$program" bench "$@" $device_model --device cuda --json; }

corpus() {
  cat >"$logs/run.textproto" <<RUN
# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
seed: 3
model { encoder_layers: $layers decoder_layers: $layers d_model: $width ffn_dim: $((4 * width))
        num_heads: $(((width + 63) / 64)) residual: DEEPNORM max_positions: 300 dropout: 0.1 }
data { folder: "prepared" max_sentence_tokens: 100 global_microbatches: 8
       microbatch { max_source_tokens: $tokens max_target_tokens: $tokens max_sentences: 64 } }
optim { learning_rate: 1e-3 warmup_steps: 10 clip_norm: 1 virtual_replicas: 4 }
compute { device: "cuda" }
train { steps: $train_steps validate_every_steps: -1 validate_sentences: 1 log_every_steps: 1
        checkpoint_every_steps: 100000 }
decode { beam_size: 1 max_tokens: 2 }
prepare { table { file: "$PWD/tests/trainer/data/testdata/udhr.tsv" languages: "de" languages: "fr" }
          tokenizer { vocab_size: 300 } }
RUN
  "$program" prepare --config "$logs/run.textproto" --root "$logs"
}

# layout RANKS STAGES REPLICAS SCHEDULE DTYPE FOLDER [WORD...]
layout() {
  ranks "$1" "$program" train --config "$logs/run.textproto" --root "$logs" --log-seconds 0 --set "folder=$6" \
    --set "parallel.pipeline_parallel_size=$2" --set "parallel.data_parallel_size=$3" \
    --set "parallel.schedule=$4" --set "compute.dtype=$5" "${@:7}"
}

# A rank has a GPU of its own: the program refuses to share one, as NCCL does.
gpus=1
if [[ $program == *emulated* ]]; then
  gpus=4
elif command -v nvidia-smi >/dev/null; then
  gpus=$(nvidia-smi -L | grep -c '^GPU ') || gpus=1
fi

part "doctor" doctor "$program" doctor --set compute.device=cuda
[[ $gpus -lt 2 ]] || part "doctor, $gpus ranks" doctor_ranks ranks "$gpus" "$program" doctor --set compute.device=cuda
part "device tests" tests ctest --test-dir "$build" --output-on-failure --no-tests=error -R "$tests"
part "corpus" corpus corpus
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
git rev-parse --short HEAD >"$logs/commit" 2>/dev/null || echo unknown >"$logs/commit"
python3 tests/gpu/first_hour_page.py "$logs" >"$page" || failed+=("parity, as the page says")
echo "page: $page"
[[ ${#failed[@]} -eq 0 ]] || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
