#!/usr/bin/env bash
# launch/container/Containerfile, built for real on a Debian made by debootstrap: the image trains on two ranks of
# its own MPI, goes on, and translates, with the weights of the build's own program. deepnet.def, for which Debian has
# no Apptainer, must give the same commands.
#
#   tests/launch/container_test.sh [STORAGE]     layers stay in the folder STORAGE, and are not made again
#
# Needs root, buildah, debootstrap and Debian's and PyPI's packages.
set -euo pipefail
export LC_ALL=C
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

# The commands of the two, one a line; the definition enters Containerfile's WORKDIR by cd.
of_containerfile() { sed -nE 's/^RUN (--[^ ]+ )?//p' launch/container/Containerfile | sed 's/ && /\n/g'; }
of_definition() {
  sed -n '/^%post/,/^$/s/^    //p' launch/container/deepnet.def |
    sed 's/ && /\n/g; s/{{ preset }}/$preset/g; /^cd \/src$/d'
}
diff <(of_containerfile) <(of_definition) || fail "Containerfile and deepnet.def differ"

# The image trusts the certificates that this machine trusts, and downloads from the same mirrors.
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

source tests/launch/bundled_run.sh

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
