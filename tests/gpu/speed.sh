#!/usr/bin/env bash
# How fast a GPU trains and translates, beside plain PyTorch on the same card in the same call: at most 12 minutes, the
# important parts first, each with a limit of its own. Prints a table last. A part that fails is listed and does not stop
# the others; exit status 1 then.
#
#   tests/gpu/speed.sh [FOLDER]
#
# FOLDER: built with preset cuda (default build/cuda), or for the emulated GPU. In share/deepnet of an installation, best
# of a wheel by `launch/wheel.sh --with-device-tests`: where logs go (default: deepnet_gpu). Logs and JSON stay in
# FOLDER/speed, packed once more in FOLDER/speed.tgz.
#
# Environment: SPEED_TINY=1 for shapes of seconds, as a rehearsal wants them; PyTorch then runs on the CPU.
set -euo pipefail
export LC_ALL=C
case ${1:-} in --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
name=speed
source "$(dirname "$0")/gpu_machine.sh"
deadline=$((SECONDS + 720))

tiny=no steps=20 repeats=50 sentences=2000 torch_device=cuda model_more=()
if [[ ${SPEED_TINY:-} == 1 ]]; then
  tiny=yes steps=1 repeats=2 sentences=2 torch_device=cpu
  model_more=(--device-model H100)  # the emulated GPU is in no table
fi

bench() { limited "$program" bench "$@" "${model_more[@]}" --device cuda --json; }

# shape LAYERS WIDTH TOKENS [STEPS]: what follows is of 6 + 6 layers or more; a rehearsal's has 1 + 1.
shape() {
  layers=$1 width=$2 tokens=$3 shape_steps=${4:-$steps}
  [[ $tiny == no ]] || layers=1 width=16 tokens=120 shape_steps=1
  of="$1 + $1, d = $2, $3 tokens"
  file=$1_$2_$3
  words=(--shape A --layers "$layers" --width "$width" --tokens "$tokens" --steps "$shape_steps")
}
# step [VARIANT WORD...]: a row of the table.
step() {
  limit=${limit:-45} part "step, $of${1:+, $1}" "step-$file${1:+-${1// /_}}.json" bench step "${words[@]}" "${@:2}"
}
kernels() { limit=45 part "kernels, $of" "kernels-$file.json" bench kernels "${words[@]}" --steps 3; }
products() { limit=60 part "products, $of" "products-$file.json" bench products "${words[@]:0:8}" --repeats "$repeats"; }
# pytorch KIND [WORD...]
pytorch() {
  limit=${limit:-40} part "PyTorch, $of, $1${2:+ $2}" "pytorch-$file-$1${2:+-compiled}.json" limited "$python" -W ignore \
    tests/bench/pytorch_gpu.py --layers "$layers" --width "$width" --tokens "$tokens" --kind "$1" --steps 12 \
    --device "$torch_device" "${@:2}"
}
train() { limit=30 part "train 20 steps: $1" "train-$1" layout 1 1 1 "" BFLOAT16 "$1" "${@:2}"; }
has_pytorch() { "$python" -W ignore -c 'import torch; torch.zeros(1, device="'$torch_device'")' >/dev/null 2>&1; }
pytorch=no
if has_pytorch; then pytorch=yes; else parts+=("| PyTorch | left out: not in $python | |"); fi

limit=20 part "device" device limited nvidia-smi \
  --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.limit,memory.total --format=csv
limit=30 part "doctor" doctor limited "$program" doctor --set compute.device=cuda
shape 6 512 8192
step
step "8 microbatches" --microbatches 8
[[ $pytorch == no ]] || { pytorch padded; pytorch packed; }
kernels
products
shape 6 1024 8192
step
step "8 microbatches" --microbatches 8
[[ $pytorch == no ]] || pytorch packed
kernels
shape 100 512 4096 5
step
[[ $pytorch == no ]] || pytorch packed
shape 500 64 500 3
step
step "graphs" --graphs
shape 500 512 4096 3
[[ $tiny == yes ]] || words=(--shape paper --steps 3)  # 250,002 pieces
limit=90 step
shape 6 512 8192
step "OWN" --attention OWN
step "graphs" --graphs
shape 6 256 2000
step
step "graphs" --graphs

if [[ $tiny == yes ]]; then
  limit=20 part "corpus" corpus corpus 2 16 120 4
else
  limit=20 part "corpus" corpus corpus 6 256 2000 20
fi
train one
train again
train graphs --set compute.cuda_graphs=true
decode_words=()
[[ $tiny == no ]] || decode_words=(--layers 1 --width 16)
limit=40 part "decode" decode.json bench decode "${decode_words[@]}" --sentences "$sentences"
if has_device_tests; then
  tests='^gpu_'
  [[ $tiny == no ]] || tests='^gpu_pointwise_kernels_test$'
  limit=90 part "device tests" tests device_tests "$tests"
fi
shape 6 512 8192
[[ $pytorch == no ]] || limit=180 pytorch padded --compile
[[ $pytorch == no || $tiny == yes ]] || limit=180 pytorch packed --compile
if command -v ncu >/dev/null; then
  limit=60 part "ncu" ncu limited ncu --clock-control none --section SpeedOfLight --section Occupancy --launch-skip 400 \
    --launch-count 60 "$program" bench step --shape A --width 512 --tokens 8192 --steps 1 --device cuda
fi

printf '%s\n' "${parts[@]}" >"$logs/parts"
tar -C "$folder" -czf "$folder/speed.tgz" --exclude=prepared --exclude='model*' --exclude='*.ckpt' speed
echo
"$python" tests/gpu/speed_table.py "$logs" || failed+=("weights of two runs differ")
[[ ${#failed[@]} -eq 0 ]] || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
