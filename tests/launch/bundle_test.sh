#!/usr/bin/env bash
# The bundle in a root that has nothing but Debian's essential packages: it trains, saves, goes on,
# trains on two ranks without MPI, and translates, with the weights of the build's own program. Then
# the root gets an Open MPI of its own, which the bundle takes, and the program once more as a .deb.
#
#   tests/launch/bundle_test.sh [FILE.tar.gz]     without one, launch/bundle.sh makes it
#
# Needs root, debootstrap, patchelf and Debian's packages.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
[[ $(id -u) -eq 0 ]] || { echo "bundle_test.sh: needs root" >&2; exit 1; }

work=$(mktemp -d)
trap 'umount "$work/bare/proc" 2>/dev/null; rm -rf "$work"' EXIT
bundle=${1:-$work/bundle.tar.gz}
[[ -n ${1:-} ]] || launch/bundle.sh --out "$bundle"
root=$work/bare
site=$(apt-get indextargets --format '$(SITE)' | head -n 1)
debootstrap --variant=minbase bookworm "$root" "$site" >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }

mount --bind /proc "$root/proc"  # where a program finds out what folder it lies in

fail() { echo "FAILED: $*" >&2; exit 1; }
bare() { chroot --userspec=nobody "$root" env -i PATH=/usr/bin:/bin HOME=/srv/user "$@"; }
! bare sh -c 'command -v gcc || command -v mpirun || command -v python3' || fail "the root is not bare"

install -d -o nobody "$root/srv/user"
tar -xf "$bundle" -C "$root/srv/user"
program=$(bare sh -c 'echo /srv/user/deepnet-*/bin/deepnet')
shared=${program%/bin/deepnet}/share/deepnet
echo "$(bare "$program" --version): $(du -sm "$root/${program%/bin/deepnet}" | cut -f 1) MiB"

source tests/launch/bundled_run.sh

bare "$program" prepare --root "$shared" $(settings /srv/user 8) >/dev/null 2>&1
train() { bare "$@" train --root "$shared" $(settings /srv/user "$steps") --set folder="/srv/user/$run" 2>&1; }
run=run steps=4
train "$program" >/dev/null
steps=8
seen=$(train "$program" | hash_of)
[[ $seen == "$wanted" ]] || fail "resumed: $seen, not $wanted"

run=two
ranks=()
for rank in 0 1; do
  train env RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
    MASTER_PORT=29731 "$program" >"$work/rank$rank" &
  ranks+=($!)
done
for rank in "${ranks[@]}"; do wait "$rank" || { cat "$work"/rank?; fail "two ranks"; }; done
seen=$(cat "$work"/rank? | hash_of)
[[ $seen == "$wanted" ]] || fail "two ranks: $seen, not $wanted"

seen=$(echo "Everyone has the right to life." |
  bare "$program" translate --checkpoint /srv/user/run --from en --to de --beam-size 1 2>/dev/null)
[[ -n $seen ]] || fail "no translation"
echo "trained, resumed and two ranks: $wanted; translated"

# libmpi [NAME=VALUE...]: the file that the program would load.
libmpi() { bare "$@" LD_TRACE_LOADED_OBJECTS=1 "$program" | awk '$1 == "libmpi.so.40" {print $3}'; }
seen=$(libmpi)
[[ $seen == */lib/deepnet/* && $seen == */mpi/* ]] || fail "without MPI: $seen"
chroot "$root" apt-get install -q -y --no-install-recommends openmpi-bin >"$work/log" 2>&1 ||
  { tail "$work/log"; fail "apt-get"; }
seen=$(libmpi)
[[ $seen == /lib/*-linux-gnu/* || $seen == /usr/lib/*-linux-gnu/* ]] || fail "Debian's MPI: $seen"
cp "$root$seen" "$root/srv/user"
seen=$(libmpi LD_LIBRARY_PATH=/srv/user)
[[ $seen == /srv/user/libmpi.so.40 ]] || fail "an environment module's MPI: $seen"

run=mpi
seen=$(train mpirun -n 2 --oversubscribe "$program" | tee "$work/log" | hash_of)
[[ $seen == "$wanted" ]] || { tail "$work/log"; fail "two ranks of the site's MPI: $seen, not $wanted"; }
grep -q "2 ranks by MPI" "$work/log" || { tail "$work/log"; fail "the ranks of mpirun do not use MPI"; }
echo "two ranks of the site's MPI: $wanted"

(cd build/release && cpack -G DEB -B "$work/deb") >"$work/log" 2>&1 || { tail "$work/log"; fail "cpack"; }
cp "$work"/deb/*.deb "$root/srv/deepnet.deb"
chroot "$root" apt-get install -q -y /srv/deepnet.deb >"$work/log" 2>&1 || { tail "$work/log"; fail "the .deb"; }
run=deb
seen=$(train /opt/deepnet/bin/deepnet | hash_of)
[[ $seen == "$wanted" ]] || fail "the .deb: $seen, not $wanted"
echo "the .deb, $(du -sm "$root/srv/deepnet.deb" | cut -f 1) MiB: $wanted"
