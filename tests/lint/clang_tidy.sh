#!/usr/bin/env bash
# clang-tidy on the product's torch-free files, for a bounded time.
#
#   tests/lint/clang_tidy.sh BUILD_FOLDER [SECONDS]
#
# BUILD_FOLDER is a torch-free build without DEEPNET_UNITY: its compile_commands.json names the files. Those changed
# against origin/main, or in the last ten commits where that is where we are, come first; the rest
# follows, from another one on in every commit, until SECONDS (default 150) are over, and it is said how
# many were reached. Exit status 1 on a finding.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
build=$1
if ! command -v clang-tidy >/dev/null; then
  echo "clang-tidy is not here: not run"
  exit 0
fi

base=$(git merge-base HEAD origin/main 2>/dev/null || true)
if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then
  base=$(git rev-list --max-count=10 HEAD | tail -n 1)
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
results=$scratch/results
: >"$results"

# One line a file, changed ones first; and the commands without g++'s precompiled header, which clang
# cannot read.
python3 -I - "$build" "$base" "$scratch" >"$results.files" <<'PY'
import json, os, re, subprocess, sys
entries = json.load(open(sys.argv[1] + "/compile_commands.json"))
if any("/Unity/" in entry["file"] for entry in entries):
    sys.exit(f"{sys.argv[1]}: configure it with -DDEEPNET_UNITY=OFF")
for entry in entries:
    entry["command"] = re.sub(r" -Winvalid-pch -include \S+", "", entry["command"])
json.dump(entries, open(sys.argv[3] + "/compile_commands.json", "w"))
known = sorted({os.path.relpath(entry["file"]) for entry in entries})
# The native kernels use vector extensions of g++ that clang 14 does not know.
known = [p for p in known if not p.startswith(("build", "..", "tests/", "trainer/kernels/native/"))]
diff = subprocess.run(["git", "diff", "--name-only", sys.argv[2]], text=True, capture_output=True)
first = int(subprocess.run(["git", "rev-parse", "HEAD"], text=True, capture_output=True).stdout or "0", 16) % len(known)
known = known[first:] + known[:first]
print("\n".join(sorted(known, key=lambda path: path not in diff.stdout.split())))
PY

# shellcheck disable=SC2016  # expanded by the inner shell
timeout "${2:-150}" xargs -a "$results.files" -P "$(nproc)" -n 1 sh -c \
  'clang-tidy --quiet -p "$0" "$2" 2>/dev/null; echo "$? $2" >>"$1"' "$scratch" "$results" || true
echo "clang-tidy: $(wc -l <"$results") of $(wc -l <"$results.files") torch-free files"
! grep -v '^0 ' "$results"
