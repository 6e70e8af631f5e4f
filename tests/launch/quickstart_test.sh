#!/usr/bin/env bash
# launch/quickstart.sh among stand-ins for the programs it starts. An ldd that goes on writing after it
# has named MPI must not make the run go on without MPI; and a folder `trial` that somebody keeps there stays.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

mkdir -p "$folder"/{bin,launch/recipes,build/release,corpus/de-en,runs/quickstart-corpus/trial/mine}
cp launch/quickstart.sh launch/stages.sh "$folder/launch"
cp launch/recipes/quickstart.textproto "$folder/launch/recipes"

# stand_in FILE: makes a script of standard input.
stand_in() {
  { echo '#!/bin/sh'; cat; } >"$folder/$1"
  chmod +x "$folder/$1"
}
stand_in launch/build.sh <<<'exit 0'
stand_in build/release/deepnet <<<'mkdir -p runs/quickstart-corpus; [ "$1" != translate ] || cat'
stand_in bin/ldd <<<'echo libmpi.so.40; seq 200000'
stand_in bin/mpirun <<<'shift 2; exec "$@"'
stand_in bin/nproc <<<'echo 2'

output=$(PATH="$folder/bin:$PATH" DEEPNET_TORCH_ROOT=. "$folder/launch/quickstart.sh" --no-install \
  --corpus "$folder/corpus" --minutes 1 2>&1) || { echo "$output"; exit 1; }
for wanted in "mpirun -n 2 build/release/deepnet train" "exit status 0"; do
  [[ $output == *"$wanted"* ]] || { echo "$output"; echo "missing: $wanted"; exit 1; }
done
[[ $(ls "$folder/runs/quickstart-corpus") == $'scores.txt\nten.de\nten.en\ntrial' ]] ||
  { ls "$folder/runs/quickstart-corpus"; exit 1; }
[[ -d $folder/runs/quickstart-corpus/trial/mine ]] || { echo "somebody's folder is gone"; exit 1; }
[[ $output != *"left out MPI"* ]] || { echo "$output"; exit 1; }
