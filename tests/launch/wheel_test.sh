#!/usr/bin/env bash
# The wheel of launch/wheel.sh, installed by pip with PyPI's PyTorch into an empty virtual environment of this machine
# and into one of a root that has Debian's essential packages and python3-venv: doctor is content, `train --text`
# trains, goes on and trains on two ranks of torchrun, with the weights of the build's own program, and translates.
#
#   tests/launch/wheel_test.sh [FILE.whl]     without one, launch/wheel.sh makes it
#
# Needs root, debootstrap, patchelf, Debian's and PyPI's packages, and 12 GB below TMPDIR.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
[[ $(id -u) -eq 0 ]] || { echo "wheel_test.sh: needs root" >&2; exit 1; }

work=$(mktemp -d)
trap 'umount "$work/bare/proc" 2>/dev/null; rm -rf "$work"' EXIT
if [[ -z ${1:-} ]]; then
  launch/wheel.sh --out "$work"
  set -- "$work"/deepnet-*.whl
fi
wheel=$(realpath "$1")
fail() { echo "FAILED: $*" >&2; exit 1; }
hash_of() { sed -n 's/.* weights \([0-9a-f]*\)$/\1/p' | tail -n 1; }

text() { awk -F'\t' -v column="$1" '$1 == "de" {print $column}' tests/trainer/data/testdata/udhr.tsv; }
text 2 >"$work/text.en"
text 3 >"$work/text.de"
# settings FOLDER STEPS: one ISA, so that hashes of other machines are the same.
settings() { echo "train --text text.en text.de --set folder=$1 --set train.steps=$2 --set compute.isa=AVX2"; }
wanted=$(cd "$work" && "$OLDPWD/build/release/deepnet" $(settings run 6) 2>&1 | hash_of)
[[ -n $wanted ]] || fail "the build's program printed no hash"

# proves NAME COMMAND...: what the command `COMMAND... PROGRAM ARGUMENT...` does in a folder with the text in it.
proves() {
  local name=$1 seen
  shift
  "$@" deepnet doctor >"$work/log" 2>&1 || { cat "$work/log"; fail "$name: doctor"; }
  "$@" deepnet $(settings run 3) >"$work/log" 2>&1 || { tail "$work/log"; fail "$name: train"; }
  seen=$("$@" deepnet $(settings run 6) 2>&1 | tee "$work/log" | hash_of)
  [[ $seen == "$wanted" ]] || { tail "$work/log"; fail "$name, resumed: $seen, not $wanted"; }
  seen=$("$@" torchrun --no-python --nproc-per-node 2 deepnet $(settings two 6) 2>&1 | tee "$work/log" | hash_of)
  [[ $seen == "$wanted" ]] || { tail "$work/log"; fail "$name, two ranks: $seen, not $wanted"; }
  grep -q "2 ranks by TCP" "$work/log" || { tail "$work/log"; fail "$name: torchrun's ranks do not talk over TCP"; }
  seen=$(echo "Everyone has the right to life." |
    "$@" deepnet translate --checkpoint run --from en --to de --beam-size 1 2>/dev/null)
  [[ -n $seen ]] || fail "$name: no translation"
  echo "$name: trained, resumed and two ranks of torchrun: $wanted; translated"
}

here() { (cd "$work/user" && env PATH="$work/user/env/bin:$PATH" "$@"); }
mkdir "$work/user"
cp "$work"/text.* "$work/user"
python3 -I -m venv "$work/user/env"
here pip install -q "$wheel"
proves "a virtual environment" here
here man -w deepnet-train >/dev/null || fail "no man page"
rm -rf "$work/user"

root=$work/bare
site=$(apt-get indextargets --format '$(SITE)' | head -n 1)
debootstrap --variant=minbase --include=ca-certificates,python3-venv bookworm "$root" "$site" >"$work/log" 2>&1 ||
  { tail "$work/log"; fail "debootstrap"; }
# It trusts the certificates and asks the index that this machine does.
cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates"
chroot "$root" update-ca-certificates >/dev/null 2>&1
cp /etc/resolv.conf "$root/etc"
[[ ! -f /etc/pip.conf ]] || cp /etc/pip.conf "$root/etc"
mount --bind /proc "$root/proc"
install -d -o nobody "$root/srv/user"
install -o nobody -m 644 "$wheel" "$work"/text.* "$root/srv/user"
bare() {
  chroot --userspec=nobody "$root" env -i $(env | grep -E '^PIP_(CERT|INDEX_URL|DEFAULT_TIMEOUT)=') \
    PATH=/srv/user/env/bin:/usr/bin:/bin HOME=/srv/user sh -c 'cd && exec "$@"' sh "$@"
}
! bare sh -c 'command -v gcc || command -v mpirun' || fail "the root is not bare"
bare python3 -I -m venv /srv/user/env
bare pip install -q "/srv/user/${wheel##*/}"
proves "a bare root" bare
