#!/usr/bin/env bash
# Makes synthetic parallel text out of monolingual text: back-translation (Sennrich et al., 2016).
#
#   launch/corpora/back_translate.sh --checkpoint FOLDER --from de --to en [--out FOLDER] TEXT [ARGUMENT...]
#   RUN="mpirun -n 4" launch/corpora/back_translate.sh --checkpoint runs/a --from de --to en news.de --sample 1
#
# For a model that is to translate from en to de: a trained model of the other direction (or of many)
# translates TEXT, a sentence of --from a line, and scores what it made. OUT (default:
# corpus/back_translation) gets the text in `text.de` (blanks for its tabs), its translations in `text.en`, and in `scores` the
# mean log-probability of a target token, a line each; -1000 where there is no translation. Shown at the
# end: which threshold so many lines pass, and what to add to a recipe. Other arguments go to `deepnet translate`.
#
# Environment: RUN, the launcher with its options, where ranks are to share the work; DEEPNET, the
# program (default: deepnet).
set -euo pipefail
export LC_ALL=C
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

checkpoint='' from='' to='' out=corpus/back_translation text='' arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --help) usage; exit 0 ;;
    --checkpoint) checkpoint=${2:-}; shift 2 || break ;;
    --from) from=${2:-}; shift 2 || break ;;
    --to) to=${2:-}; shift 2 || break ;;
    --out) out=${2:-}; shift 2 || break ;;
    -*) break ;;
    *) [[ -z $text ]] || break; text=$1; shift ;;
  esac
done
arguments=("$@")
[[ -n $checkpoint && -n $from && -n $to && -n $text ]] || { usage >&2; exit 2; }
for language in "$from" "$to"; do  # which become parts of names of files
  [[ $language =~ ^[A-Za-z0-9_]+$ ]] || { echo "back_translate.sh: '$language' is no language's tag" >&2; exit 2; }
done
[[ -r $text ]] || { echo "back_translate.sh: $text cannot be read" >&2; exit 4; }

# model COMMAND [ARGUMENT...]
read -ra launcher <<< "${RUN:-}"
model() {
  local command=$1
  shift
  "${launcher[@]}" "${DEEPNET:-deepnet}" "$command" --checkpoint "$checkpoint" --from "$from" --to "$to" "$@"
}

mkdir -p "$out"
new=$(mktemp "$out/.deepnet-XXXXXXXX")
chmod "$(printf '%o' $((0666 & ~$(umask))))" "$new"
tr '\t' ' ' < "$text" > "$new"  # a tab ends the source of what `score` reads
mv "$new" "$out/text.$from"     # TEXT may be this file
model translate "${arguments[@]}" < "$out/text.$from" > "$out/text.$to"
paste "$out/text.$from" "$out/text.$to" | model score | paste - "$out/text.$to" |
  awk -F '\t' '{ print ($1 == "nan" || $3 == "") ? -1000 : $1 / $2 }' > "$out/scores"

lines=$(wc -l < "$out/scores")
[[ $lines -eq $(wc -l < "$out/text.$to") ]] || { echo "back_translate.sh: $out: lines are missing" >&2; exit 4; }
echo "$lines lines; a score_threshold that the best of them pass:"
for percent in 90 75 50 25; do
  sort -rg "$out/scores" | awk -v n="$((lines * percent / 100))" -v p="$percent" 'NR == n { print "  " p " %: " $1 }'
done
cat <<END
In the recipe of the model from $to to $from, with the tokenizer of the corpus it has:

prepare {
  text {
    source_language: "$to" source_file: "$out/text.$to"
    target_language: "$from" target_file: "$out/text.$from"
    score_file: "$out/scores" score_threshold: ...
    tag: "bt"
  }
}
data { weights { direction: "*-*.bt" weight: 1 } }
END
