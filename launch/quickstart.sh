#!/usr/bin/env bash
# From a bare Debian 12 to a trained, translating, multilingual DeepNet: about half an hour.
#
#   launch/quickstart.sh [--no-install] [--corpus DIR] [--minutes M] [--help]
#
#   --no-install   install no packages (nothing is installed without root or sudo anyway)
#   --corpus DIR   learn from DIR (OPUS-100's layout) instead of building a corpus
#   --minutes M    train M minutes; default 10
#
# Steps: packages, LibTorch, build, corpus (German, Spanish, French, Italian and English from Debian
# packages), prepare, train, evaluate, translate ten sentences. What cannot be installed or fetched
# is left out and named at the end; without a network it learns from launch/corpora/udhr.tsv.
# Run again, it keeps what is done: corpus, prepared data, and a run that has had its minutes.
# Environment variables that name libraries in unusual places: launch/build.sh --help.
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
install=yes
corpus=""
minutes=10
while [[ $# -gt 0 ]]; do
  case $1 in
    --no-install) install=no ;;
    --corpus) corpus=$(realpath -e "${2:?--corpus needs a folder}") && shift ;;
    --minutes) minutes=${2:?--minutes needs a number} && shift ;;
    --help) usage; exit 0 ;;
    *) echo "quickstart.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
if ! [[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]]; then
  echo "quickstart.sh: --minutes '$minutes' is not a number" >&2
  exit 2
fi

cd "$(dirname "$0")/.."
source launch/stages.sh
deepnet=build/release/deepnet

# Sets `corpus`, the folder to prepare, and `name`, what is made of it.
get_corpus() {
  local langs=de,es,fr,it
  name=quickstart
  if [[ -n $corpus ]]; then
    name=quickstart-$(basename "$corpus")
    note "using $corpus"
    return
  fi
  corpus=corpus/small
  if [[ -f $corpus/manifest.json ]]; then
    note "already in $corpus"
    return
  fi
  local build=(launch/corpora/debian_corpus.py build small --langs "$langs" --out "$corpus")
  if command -v apt-get >/dev/null && "${build[@]}"; then return; fi
  if [[ $install == yes && $(id -u) -eq 0 ]] && apt-get update -q && "${build[@]}"; then return; fi
  left_out+=("corpus of Debian packages: not fetched, learned from launch/corpora/udhr.tsv instead")
  name=quickstart-udhr
  corpus=corpus/udhr
  launch/corpora/debian_corpus.py build udhr --langs "$langs" --out "$corpus"
}

# Languages that the corpus pairs with English, at most four.
languages() {
  local folder
  for folder in "$corpus"/*-*/; do
    folder=$(basename "$folder")
    [[ $folder != en-* ]] || echo "${folder#en-}"
    [[ $folder != *-en ]] || echo "${folder%-en}"
  done | sort | head -n 4
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

translate_ten() {
  local language
  ten_sentences >"$run/ten.en"
  for language in $(languages); do
    "$deepnet" translate --checkpoint "$run" --from en --to "$language" \
      <"$run/ten.en" >"$run/ten.$language" 2>>"$run/translate.log"
  done
  local number sentence
  for number in $(seq 10); do
    sentence=$(sed -n "${number}p" "$run/ten.en")
    printf '\n   en  %s\n' "$sentence"
    for language in $(languages); do
      printf '   %-3s %s\n' "$language" "$(sed -n "${number}p" "$run/ten.$language")"
    done
  done
}

stage "packages" get_packages "$install"
stage "LibTorch" get_libtorch
stage "build" launch/build.sh deepnet
stage "corpus" get_corpus

run=runs/$name
spec=(--config launch/recipes/quickstart.textproto
  --set "folder=$run" --set "data.folder=data/$name" --set "train.minutes=$minutes"
  --set "prepare.opus100_folder=$corpus" --set "prepare.output_folder=data/$name"
  --set "prepare.languages=")

stage "prepare" "$deepnet" prepare "${spec[@]}"
stage "train $minutes minutes" "$deepnet" train "${spec[@]}"
stage "evaluate" "$deepnet" evaluate --checkpoint "$run" --split test --sentences 200
stage "translate" translate_ten

printf '\n== results\n'
note "run      $run"
note "log      $run/log.txt, $run/metrics.jsonl"
note "scores   $run/evaluate.json"
note "go on    $deepnet train ${spec[*]} --set train.minutes=60"
for what in "${left_out[@]}"; do note "left out $what"; done
