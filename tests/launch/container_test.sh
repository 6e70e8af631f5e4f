#!/usr/bin/env bash
# launch/container/Containerfile, built for real on a Debian made by debootstrap: the image trains on two ranks of
# its own MPI, goes on, and translates, with the weights of the build's own program. deepnet.def, for which Debian has
# no Apptainer, must give the same commands.
#
#   tests/launch/container_test.sh [STORAGE]     layers stay in the folder STORAGE, and are not made again
#
# Needs root, buildah, debootstrap and Debian's and PyPI's packages.
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ $(id -u) -eq 0 ]] || { echo "container_test.sh: needs root" >&2; exit 1; }
fail() { echo "FAILED: $*" >&2; exit 1; }

work=$(mktemp -d)
storage=${1:-$work/storage}
container=
buildah() { command buildah --root "$storage/images" --runroot "$storage/run" "$@"; }
cleanup() {
  [[ -z $container ]] || buildah rm "$container" >/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

# The commands after COPY and RUN, or of %post, without line ends that bash passes over.
of_containerfile() { sed -nE 's/^RUN (--[^ ]+ )?//p' launch/container/Containerfile; }
of_definition() { sed -n '/^%post/,/^$/p' launch/container/deepnet.def | sed -n 's/^    //p'; }
python3 - <(of_containerfile) <(of_definition) <<'PY' || fail "deepnet.def and Containerfile differ"
import sys

def commands(path, variables):
    text = open(path).read().replace(" && ", "\n")
    for here, there in variables:
        text = text.replace(here, there)
    return [line for line in text.splitlines() if line != "cd /src"]

first, second = commands(sys.argv[1], []), commands(sys.argv[2], [("{{ preset }}", "$preset")])
for line in sorted(set(first) ^ set(second)):
    print("only in one:", line)
sys.exit(first != second)
PY

# What this machine trusts and where it downloads from, the image does too.
if ! buildah inspect localhost/debian:12 >/dev/null 2>&1; then
  site=$(apt-get indextargets --format '$(SITE)' | head -n 1)
  debootstrap --variant=minbase --include=ca-certificates bookworm "$work/debian" "$site" >"$work/log" 2>&1 ||
    { tail "$work/log"; fail "debootstrap"; }
  cp -r /usr/local/share/ca-certificates/. "$work/debian/usr/local/share/ca-certificates"
  [[ ! -f /etc/pip.conf ]] || cp /etc/pip.conf "$work/debian/etc"
  chroot "$work/debian" update-ca-certificates >/dev/null 2>&1
  base=$(buildah from scratch)
  buildah add --quiet "$base" "$work/debian" / >/dev/null
  buildah commit --quiet --rm "$base" localhost/debian:12 >/dev/null
  rm -rf "$work/debian"
fi

buildah bud --layers --isolation chroot --build-arg debian=localhost/debian:12 --tag deepnet \
  --file launch/container/Containerfile . >"$work/log" 2>&1 || { tail -n 40 "$work/log"; fail "the build"; }

# settings FOLDER STEPS: a small model of the laboratory's recipe.
settings() {
  echo --config launch/recipes/lab/deep_gradients.textproto --set data.folder="$1/data" \
    --set prepare.tokenizer.vocab_size=300 --set model.encoder_layers=2 --set model.decoder_layers=2 \
    --set compute.isa=AVX2 --set train.steps="$2"
}
hash_of() { sed -n 's/.* weights \([0-9a-f]*\)$/\1/p' | tail -n 1; }

here=build/release/deepnet
$here prepare $(settings "$work" 8) >/dev/null 2>&1
wanted=$($here train $(settings "$work" 8) --set folder="$work/run" 2>&1 | hash_of)
[[ -n $wanted ]] || fail "the build's program printed no hash"

container=$(buildah from deepnet)
inside() { buildah run --isolation chroot "$container" -- "$@"; }
shared=/opt/deepnet/share/deepnet
echo "$(inside deepnet --version), $(inside du -sm /opt/deepnet | cut -f 1) MiB"
inside deepnet prepare --root $shared $(settings /srv 8) >/dev/null 2>&1
train() { inside mpirun -n 2 --oversubscribe deepnet train --root $shared $(settings /srv "$1") --set folder=/srv/run 2>&1; }
train 4 >/dev/null
seen=$(train 8 | tee "$work/log" | hash_of)
[[ $seen == "$wanted" ]] || { tail "$work/log"; fail "two ranks, resumed: $seen, not $wanted"; }
grep -q "2 ranks by MPI" "$work/log" || { tail "$work/log"; fail "the ranks of mpirun do not use MPI"; }
seen=$(echo "Everyone has the right to life." |
  inside deepnet translate --checkpoint /srv/run --from en --to de --beam-size 1 2>/dev/null)
[[ -n $seen ]] || fail "no translation"
echo "trained, resumed on two ranks: $wanted; translated"
