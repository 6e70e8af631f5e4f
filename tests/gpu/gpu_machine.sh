# shellcheck shell=bash
# Sourced by first_hour.sh and speed.sh, with `name`, what the folder of the logs is called, and FOLDER as their argument.
# Goes to the folder of the source, or to share/deepnet of an installation, which needs no repository, network or MPI.
#
# Sets `folder`, an absolute path; `program`: deepnet of the installation, or of the build folder `folder`, there the one
# with the emulated GPU if it exists; `installed`, the installation's folder, or nothing; `python`, which has PyTorch
# where the installation has; and `logs`, an empty folder.
folder=${1:+$(realpath -m "$1")}
installed=
if [[ -e $(dirname "$0")/../../CMakeLists.txt ]]; then
  cd "$(dirname "$0")/../.."
  folder=${folder:-$PWD/build/cuda}
  program=$folder/deepnet
  if [[ -x $folder/tests/gpu/deepnet_on_emulated_gpu ]]; then program=$folder/tests/gpu/deepnet_on_emulated_gpu; fi
else
  folder=${folder:-$PWD/deepnet_gpu}
  cd "$(dirname "$0")/../.."
  installed=$(cd ../.. && pwd)
  program=$installed/bin/deepnet
fi
[[ -x $program ]] || { echo "$program: not there; build it first" >&2; exit 2; }
emulated=no
[[ $(realpath "$program") != *emulated* ]] || emulated=yes
python=python3
[[ ! -x $installed/bin/python3 ]] || python=$installed/bin/python3

logs=$folder/$name
rm -rf "$logs"
mkdir -p "$logs"

failed=()
parts=()
# part NAME LOG COMMAND...: runs it into $logs/LOG, within `limit` seconds if that is set and before `deadline`, a value
# of SECONDS, if that is. What COMMAND starts by `limited` is ended then.
part() {
  local name=$1 log=$2 began=$SECONDS seconds=${limit:-3600}
  shift 2
  printf '%-44s ' "$name"
  if [[ -n ${deadline:-} && $((deadline - SECONDS)) -lt $seconds ]]; then seconds=$((deadline - SECONDS)); fi
  if [[ $seconds -lt 5 ]]; then
    echo "left out: no time"
    parts+=("| $name | left out | |")
  elif "$@" >"$logs/$log" 2>"$logs/$log.err"; then
    printf 'ok %6d s\n' $((SECONDS - began))
    parts+=("| $name | ok | $((SECONDS - began)) |")
  else
    printf 'FAILED after %d s, see %s.err\n' $((SECONDS - began)) "$logs/$log"
    parts+=("| $name | **failed** | $((SECONDS - began)) |")
    failed+=("$name")
  fi
}
limited() { timeout "$seconds" "$@"; }

# ranks N COMMAND...
ranks() {
  if [[ $1 -eq 1 ]]; then
    limited "${@:2}"
  elif [[ -n $installed ]]; then
    limited tests/mpi/torchrun.sh "$@"
  else
    limited tests/mpi/mpirun.sh "$@"
  fi
}

# has_device_tests, device_tests REGEXP: those of the build folder, or of an installation by
# `launch/wheel.sh --with-device-tests`, whose programs lie beside the wheel's.
programs=("$installed"/lib*/python*/*-packages/deepnet/bin/gpu_*_test)
has_device_tests() { [[ -z $installed || -x ${programs[0]} ]]; }
device_tests() {
  if [[ -z $installed ]]; then
    limited ctest --test-dir "$folder" --output-on-failure --no-tests=error -R "$1"
    return
  fi
  local test status=0
  for test in "${programs[@]}"; do
    [[ ${test##*/} =~ $1 ]] || continue
    case $test in  # those of any device, the CPU among them
      */gpu_init_test | */gpu_*_scorer_test) limited env GTEST_FILTER='*/GPU' "$test" || status=1 ;;
      *) limited "$test" || status=1 ;;
    esac
  done
  return $status
}

# corpus LAYERS WIDTH TOKENS STEPS: a run, $logs/run.textproto, and what it learns from.
corpus() {
  cat >"$logs/run.textproto" <<RUN
# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
seed: 3
model { encoder_layers: $1 decoder_layers: $1 d_model: $2 ffn_dim: $((4 * $2))
        num_heads: $((($2 + 63) / 64)) residual: DEEPNORM max_positions: 300 dropout: 0.1 }
data { folder: "prepared" max_sentence_tokens: 100 global_microbatches: 8
       microbatch { max_source_tokens: $3 max_target_tokens: $3 max_sentences: 64 } }
optim { learning_rate: 1e-3 warmup_steps: 10 clip_norm: 1 virtual_replicas: 4 }
compute { device: "cuda" }
train { steps: $4 validate_every_steps: -1 validate_sentences: 1 log_every_steps: 1
        checkpoint_every_steps: 100000 }
decode { beam_size: 1 max_tokens: 2 }
prepare { table { file: "$PWD/tests/trainer/data/testdata/udhr.tsv" languages: "de" languages: "fr" }
          tokenizer { vocab_size: 300 } }
RUN
  limited "$program" prepare --config "$logs/run.textproto" --root "$logs"
}

# layout RANKS STAGES REPLICAS SCHEDULE DTYPE FOLDER [WORD...]: trains that run.
layout() {
  ranks "$1" "$program" train --config "$logs/run.textproto" --root "$logs" --log-seconds 0 --set "folder=$6" \
    --set "parallel.pipeline_parallel_size=$2" --set "parallel.data_parallel_size=$3" \
    --set "parallel.schedule=$4" --set "compute.dtype=$5" "${@:7}"
}
