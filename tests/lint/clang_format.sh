#!/usr/bin/env bash
# All C++ files are as clang-format 14 leaves them; other versions differ in detail, so they are not
# asked.   tests/lint/clang_format.sh [--fix]
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
tool=$(command -v clang-format-14 || command -v clang-format || true)
if [[ -z $tool || $("$tool" --version) != *" 14."* ]]; then
  echo "clang-format 14 is not here: formatting not checked"
  exit 0
fi
mode=(--dry-run -Werror)
[[ ${1:-} != --fix ]] || mode=(-i)
git ls-files -z '*.h' '*.cc' '*.cu' '*.inc' | xargs -0 -r "$tool" --style=file "${mode[@]}"
echo "clang-format: $(git ls-files '*.h' '*.cc' '*.cu' '*.inc' | wc -l) files"
