#!/usr/bin/env bash
# launch/quickstart.sh among stand-ins for the programs it starts. An ldd that goes on writing after it
# has named MPI must not make the run go on without MPI; and a folder `trial` that somebody keeps there stays.
# Where nvidia-smi shows a GPU, what is fetched, built and started is for that GPU; where doctor refuses it, the
# run goes on without. And launch/build.sh where Linux does not say how much memory is free: as many jobs as 4 GB hold; and scripts that lack a word.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

mkdir -p "$folder"/{bin,launch/recipes,launch/corpora,build/release,build/cuda,corpus/de-en,runs/quickstart-corpus/trial/mine}
cp launch/quickstart.sh launch/stages.sh "$folder/launch"
cp launch/recipes/quickstart.textproto "$folder/launch/recipes"

# stand_in FILE: makes a script of standard input.
stand_in() {
  { echo '#!/bin/sh'; cat; } >"$folder/$1"
  chmod +x "$folder/$1"
}
stand_in launch/fetch_libtorch.sh <<<'echo "fetched $@"'
stand_in launch/build.sh <<<'echo "built $@ for $CUDAARCHS"'
stand_in build/release/deepnet <<'END'
echo "deepnet $*" >&2
mkdir -p runs/quickstart-corpus runs/quickstart
[ "$1" != doctor ] || exit $DOCTOR
[ "$1" != translate ] || cat
for word do case $word in folder=*trial*) [ -z "$METRICS" ] || printf "$METRICS" >"${word#folder=}/metrics.jsonl" ;; esac; done
END
cp "$folder/build/release/deepnet" "$folder/build/cuda/deepnet"
stand_in bin/ldd <<<'echo libmpi.so.40; seq 200000'
stand_in bin/mpirun <<<'shift 2; exec "$@"'
stand_in bin/nproc <<<'echo 2'
stand_in bin/nvcc <<<'echo "Cuda compilation tools, release $NVCC"'
stand_in bin/nvidia-smi <<<'[ -n "$GPUS" ] || exit 9; printf "$GPUS"'

# run NAME=VALUE...: the output of all of it, and its exit status.
arguments=(--corpus "$folder/corpus")
run() {
  output=$(env -u DEEPNET_TORCH_ROOT PATH="$folder/bin:$PATH" XDG_CACHE_HOME="$folder" CUDACXX="$folder/bin/nvcc" \
    DOCTOR=0 METRICS= "$@" "$folder/launch/quickstart.sh" --no-install "${arguments[@]}" --minutes 1 2>&1) ||
    { echo "$output"; exit 1; }
}
has() { for wanted in "$@"; do [[ $output == *"$wanted"* ]] || { echo "$output"; echo "missing: $wanted"; exit 1; }; done; }
lacks() { for unwanted in "$@"; do [[ $output != *"$unwanted"* ]] || { echo "$output"; echo "there is: $unwanted"; exit 1; }; done; }

run NVCC=13.0 GPUS=
has $'fetched \n' "built --preset release deepnet for" "mpirun -n 2 build/release/deepnet train" "exit status 0"
lacks "left out" compute.device
# Without a measurement it goes by 520 steps a minute, and by 700 at least.
has "could not be measured" "train.max_train_minutes=1 --set optim.decay_steps=700" \
  "train.max_train_minutes=60 --set optim.decay_steps=30264" "prepare.opus100_folder=$folder/corpus --set prepare.languages= "
[[ $(ls "$folder/runs/quickstart-corpus") == $'scores.txt\nten.de\nten.en\ntrial' ]] ||
  { ls "$folder/runs/quickstart-corpus"; exit 1; }
[[ -d $folder/runs/quickstart-corpus/trial/mine ]] || { echo "somebody's folder is gone"; exit 1; }

# 50 steps in 5 s, after a start of 7 s.
run NVCC=13.0 GPUS='9.0\n' \
  METRICS='{"kind":"train","step":10,"seconds":7}\n{"kind":"save","step":20}\n{"kind":"train","step":60,"seconds":12}\n'
has "600 steps per minute on this machine" "train.max_train_minutes=60 --set optim.decay_steps=34920"
[[ $(<"$folder/runs/quickstart-corpus/speed.txt") == 600 ]] || { echo "the speed is not kept"; exit 1; }
has $'fetched --cuda\n' "built --preset cuda deepnet for 90-real" "training on the GPU" \
  "   build/cuda/deepnet train" compute.device=cuda
lacks "left out" "mpirun -n"

run NVCC=12.4 GPUS='8.0\n9.0\n9.0\n'
has $'fetched --cuda-toolkit\n' "built --preset cuda deepnet for 80-real;90-real" "mpirun -n 2 build/cuda/deepnet train"
lacks "left out"

run NVCC=13.0 GPUS='9.0\n' DOCTOR=3
has "left out the GPU" compute.device=cpu "mpirun -n 2 build/cuda/deepnet train"

run NVCC=13.0 GPUS='7.5\n'
has $'fetched \n' "left out a GPU of compute capability '75'" "build/release/deepnet train"

run NVCC=13.0 GPUS='9.0\n' DEEPNET_TORCH_ROOT=.
has "left out the GPU" "build/release/deepnet train"
lacks "fetched"

# Without --corpus: one that was not finished is built again, one that is whole is not.
stand_in launch/corpora/debian_corpus.py <<<'echo "corpus $*"'
stand_in bin/apt-get <<<'exit 1'
mkdir -p "$folder"/corpus/small/{es-en,en-fr,it-en}
arguments=()
run NVCC=13.0 GPUS=
has "corpus build small --out corpus/small --langs es,fr,it" "deepnet prepare --config launch/recipes/quickstart.textproto"
touch "$folder/corpus/small/manifest.json"
run NVCC=13.0 GPUS=
has "already in corpus/small"
lacks "corpus build"
mv "$folder/corpus/small/it-en" "$folder/corpus/small/pt-en"
run NVCC=13.0 GPUS=
has "corpus build small"

cp launch/build.sh "$folder/launch"
stand_in bin/cmake <<<'echo "$@"'
awk=$(command -v awk)
stand_in bin/awk <<<'for word do [ "$word" != /proc/meminfo ] || word=$MEMINFO; set -- "$@" "$word"; shift; done; exec '"$awk"' "$@"'
# build_with MEMINFO: the output of a build.
build_with() {
  echo "$1" >"$folder/meminfo"
  output=$(PATH="$folder/bin:$PATH" MEMINFO=$folder/meminfo "$folder/launch/build.sh")
}
build_with 'MemTotal: 9000000 kB'
has "--parallel 2"
build_with 'MemAvailable: 1600000 kB'
has "--parallel 1"

# A script that lacks a word says which.
for words in "build.sh --preset" "bundle.sh --out" "bundle.sh --preset" "wheel.sh --out" "wheel.sh --preset" bundle_libraries.sh; do
  read -ra words <<<"$words"
  if output=$("launch/${words[0]}" "${words[@]:1}" 2>&1); then echo "${words[*]}: no error"; exit 1; fi
  has needs
done
