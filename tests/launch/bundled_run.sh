# shellcheck shell=bash
# Sourced by the tests of what is installed elsewhere, with `work`, a folder: one small run, of which
# `wanted` is the hash of the weights by the build's own program.

# settings FOLDER STEPS: a small model of the laboratory's recipe.
settings() {
  echo --config launch/recipes/lab/deep_gradients.textproto --set data.folder="$1/data" \
    --set prepare.tokenizer.vocab_size=300 --set model.encoder_layers=2 --set model.decoder_layers=2 \
    --set compute.isa=AVX2 --set train.steps="$2"
}
hash_of() { sed -n 's/.* weights \([0-9a-f]*\)$/\1/p' | tail -n 1; }

build/release/deepnet prepare $(settings "$work" 8) >/dev/null 2>&1
wanted=$(build/release/deepnet train $(settings "$work" 8) --set folder="$work/run" 2>&1 | hash_of)
[[ -n $wanted ]] || { echo "FAILED: the build's program printed no hash" >&2; exit 1; }
