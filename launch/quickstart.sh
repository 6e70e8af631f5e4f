#!/usr/bin/env bash
# From a bare Debian 12 to a trained, translating, multilingual DeepNet: about half an hour.
#
#   launch/quickstart.sh [--no-install] [--corpus DIR] [--minutes M] [--help]
#
#   --no-install   install no packages (nothing is installed without root or sudo anyway)
#   --corpus DIR   learn from DIR (OPUS-100's layout) instead of building a corpus
#   --minutes M    train M minutes; default 10
#
# Steps: packages, LibTorch, build, corpus (from Debian's packages, in the languages of
# launch/recipes/quickstart.textproto), prepare, measure (15 seconds of training, to know how many
# steps the minutes hold), train (a pipeline of two ranks under mpirun), evaluate, translate ten
# sentences. What cannot be installed or fetched is left out and named at the end; without a network
# it learns from launch/corpora/udhr.tsv. Where nvidia-smi shows a GPU it fetches LibTorch with CUDA
# (and a CUDA 13 toolkit, if nvcc is missing), builds for that GPU alone, and trains there.
# Run again, it keeps what is done: corpus, prepared data, and a run that has had its minutes.
# Environment variables that name libraries in unusual places: launch/build.sh --help.
set -euo pipefail
export LC_ALL=C

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
install=yes
corpus=""
minutes=10
while [[ $# -gt 0 ]]; do
  case $1 in
    --no-install) install=no ;;
    --corpus) corpus=${2:?--corpus needs a folder}; shift ;;
    --minutes) minutes=${2:?--minutes needs a number}; shift ;;
    --help) usage; exit 0 ;;
    *) echo "quickstart.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
if ! [[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]]; then
  echo "quickstart.sh: --minutes '$minutes' is not a number" >&2
  exit 2
fi
if [[ -n $corpus ]]; then
  [[ -d $corpus ]] || { echo "quickstart.sh: --corpus '$corpus' is not a folder" >&2; exit 4; }
  corpus=$(realpath "$corpus")
fi

cd "$(dirname "$0")/.."
source launch/stages.sh
preset=release
deepnet=build/release/deepnet

recipe=launch/recipes/quickstart.textproto
# The recipe's languages besides English, for the default corpus.
languages() { sed -n 's/^ *languages: "\(.*\)".*/\1/p' "$recipe" | grep -v '^en$'; }

# Sets `name`, what the run is called, and `settings`, what the program is told but for the minutes.
get_corpus() {
  name=quickstart
  settings=(--config "$recipe")
  if [[ -n $corpus ]]; then
    note "using $corpus"
    use_other_corpus "$(basename "$corpus")"
  elif has_small; then
    note "already in corpus/small"
  elif ! build_small; then
    left_out+=("Debian's packages as a corpus: learned from launch/corpora/udhr.tsv instead")
    corpus=corpus/udhr
    launch/corpora/debian_corpus.py build udhr --langs "$(languages | paste -sd,)" --out "$corpus"
    use_other_corpus udhr
  fi
}

has_small() {
  local language
  for language in $(languages); do
    [[ -d corpus/small/$language-en || -d corpus/small/en-$language ]] || return 1
  done
  [[ -f corpus/small/manifest.json ]]
}

build_small() {
  local build=(launch/corpora/debian_corpus.py build small --out corpus/small
    --langs "$(languages | paste -sd,)")
  command -v apt-get >/dev/null || return 1
  "${build[@]}" && return
  # The lists of packages may be missing: only root can get them.
  [[ $install == yes && $(id -u) -eq 0 ]] && apt-get update -q && "${build[@]}"
}

use_other_corpus() {
  name=quickstart-$1
  settings+=(--set "folder=runs/$name/model" --set "data.folder=runs/$name/data"
    --set "prepare.opus100_folder=$corpus" --set "prepare.languages=")
}

# The languages that the ten sentences are translated into are paired with English, at most four.
targets() {
  if [[ -z $corpus ]]; then
    languages
    return
  fi
  local folder
  for folder in "$corpus"/*-*/; do
    folder=$(basename "$folder")
    case $folder in
      en-*) echo "${folder#en-}" ;;
      *-en) echo "${folder%-en}" ;;
    esac
  done | sort | sed -n 1,4p
}

ten_sentences() {
  cat <<'TEXT'
Where is the file?
Please enter your password.
Do you want to save the changes?
You can change the settings at any time.
The page could not be found.
There is not enough free space on the disk.
Choose a name for the new folder.
Click the button to open the window.
This book is for my mother and my father.
All people have the right to life and freedom.
TEXT
}

# Sets `gpus`, how many there are that CUDA 13 and the kernels know, and for which architectures to build.
find_gpus() {
  local capability
  gpus=0
  architectures=
  while read -r capability; do
    capability=${capability/./}
    if ! [[ $capability =~ ^[0-9]+$ && $capability -ge 80 ]]; then
      left_out+=("a GPU of compute capability '$capability': kernels need 8.0")
      continue
    fi
    gpus=$((gpus + 1))
    [[ ";$architectures;" == *";$capability-real;"* ]] || architectures+=${architectures:+;}$capability-real
  done < <(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true)
}

# Sets `preset` and `deepnet` too: with CUDA where there is a GPU and all that it needs can be had.
get_libraries() {
  local with=--cuda
  find_gpus
  if [[ $gpus -gt 0 ]] && ! has_nvcc; then
    with=--cuda-toolkit
    unset CUDACXX CUDAToolkit_ROOT  # of another release
  fi
  if [[ $gpus -gt 0 && -n ${DEEPNET_TORCH_ROOT:-} ]] &&
    ! [[ $with == --cuda && -e $DEEPNET_TORCH_ROOT/lib/libtorch_cuda.so ]]; then
    left_out+=("the GPU: DEEPNET_TORCH_ROOT is without CUDA, or there is no CUDA 13 toolkit")
    gpus=0
  elif [[ $gpus -gt 0 ]] && ! get_libtorch "$with"; then
    left_out+=("the GPU: LibTorch with CUDA could not be fetched")
    gpus=0
  fi
  if [[ $gpus -eq 0 ]]; then
    get_libtorch
    return
  fi
  preset=cuda
  deepnet=build/cuda/deepnet
  export CUDAARCHS=$architectures
  note "$gpus GPU(s): building for $architectures"
}

# Sets `train_command`: two ranks in a pipeline, a core or a GPU each, where there are MPI and two of
# them; else one process with one GPU or all cores. Through mpirun a terminal looks like a pipe, so the
# bar is asked for.
choose_ranks() {
  local devices
  devices=$(nproc)
  if [[ $gpus -gt 0 ]]; then
    if "$deepnet" doctor --set compute.device=cuda; then
      devices=$gpus
      settings+=(--set compute.device=cuda)
      note "training on the GPU, or a GPU a rank"
    else
      left_out+=("the GPU: doctor names something, above; trained on the CPU")
      settings+=(--set compute.device=cpu)
    fi
  fi
  train_command=("$deepnet" train "${settings[@]}")
  # All of ldd's output is read: grep -q would end at the first line that fits, and ldd by SIGPIPE.
  if ! command -v mpirun >/dev/null || [[ $(ldd "$deepnet") != *libmpi* ]]; then
    left_out+=("MPI: trained in one process instead of a pipeline of two ranks")
  elif [[ $devices -ge 2 ]]; then
    # Open MPI: as root too, and without binding or counting cores.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_rmaps_base_oversubscribe=1
    train_command=(mpirun -n 2 "${train_command[@]}" --set parallel.pipeline_parallel_size=2
      --set parallel.schedule=zb-h1)
  fi
  [[ ! -t 2 ]] || train_command+=(--progress bar)
  note "${train_command[*]}"
}

train() { "${train_command[@]}" "$@"; }

# Steps per minute from the "train" lines of a metrics file, without what came before the first;
# nothing where there are too few.
steps_per_minute() {
  awk 'function number(key,  at) {
         at = index($0, "\"" key "\":")
         return at ? substr($0, at + length(key) + 3) + 0 : 0
       }
       /"kind":"train"/ {
         step = number("step"); seconds = number("seconds")
         if (!lines++) { first_step = step; first_seconds = seconds }
       }
       END {
         if (seconds > first_seconds)
           printf "%d\n", 60 * (step - first_step) / (seconds - first_seconds)
       }' "$1"
}

# Sets `speed`, steps per minute on this machine, which decides when the learning rate reaches its
# end: measured once by a run of 15 seconds that is thrown away, then kept in speed.txt.
get_speed() {
  local kept=runs/$name/speed.txt trial
  speed=$(cat "$kept" 2>/dev/null || true)
  if [[ $speed =~ ^[1-9][0-9]*$ ]]; then
    note "$speed steps per minute, measured before (delete $kept to measure again)"
    return
  fi
  speed=""
  trial=$(mktemp -d "runs/$name/trial.XXXXXX")
  if train --set "folder=$trial" --set train.max_train_minutes=0.25 --set train.log_every_steps=10 \
    --set train.validate_sentences=1 --set decode.beam_size=1 --set decode.max_tokens=10 \
    >/dev/null 2>&1; then
    speed=$(steps_per_minute "$trial/metrics.jsonl" || true)
  fi
  rm -rf "$trial"
  if [[ $speed =~ ^[1-9][0-9]*$ ]]; then
    note "$speed steps per minute on this machine"
    echo "$speed" >"$kept"
  else
    speed=520
    note "could not be measured: going by $speed steps per minute"
  fi
}

# Settings of a run of $1 minutes: the rate falls to its end (after its warm-up) a little before the
# minutes are over.
for_minutes() {
  local steps
  steps=$(awk -v m="$1" -v v="$speed" 'BEGIN { s = int(0.97 * v * m); print s < 700 ? 700 : s }')
  echo "--set train.max_train_minutes=$1 --set optim.decay_steps=$steps"
}

evaluate() {
  "$deepnet" evaluate --checkpoint "$model" --split test --sentences 200 |
    tee "runs/$name/scores.txt"
}

translate_ten() {
  local language number
  ten_sentences >"runs/$name/ten.en"
  for language in $(targets); do
    "$deepnet" translate --checkpoint "$model" --from en --to "$language" \
      <"runs/$name/ten.en" >"runs/$name/ten.$language"
  done
  for number in $(seq 10); do
    printf '\n'
    for language in en $(targets); do
      printf '   %-3s %s\n' "$language" "$(sed -n "${number}p" "runs/$name/ten.$language")"
    done
  done
}

stage "packages" get_packages "$install"
stage "LibTorch" get_libraries
stage "build" launch/build.sh --preset "$preset" deepnet
stage "corpus" get_corpus

model=runs/$name/model
stage "prepare" "$deepnet" prepare "${settings[@]}"
stage "ranks" choose_ranks
stage "measure" get_speed
# shellcheck disable=SC2046  # words are wanted
stage "train $minutes minutes" train $(for_minutes "$minutes")
stage "evaluate" evaluate
stage "translate" translate_ten

printf '\n== results\n'
note "run      $model"
note "log      $model/metrics.jsonl"
note "scores   runs/$name/scores.txt"
note "learn on ${train_command[*]} $(for_minutes 60)"
for what in "${left_out[@]}"; do note "left out $what"; done
