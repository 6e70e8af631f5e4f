#!/usr/bin/env bash
# The rehearsal of first_hour.sh on the emulated GPU: every part is well, and the page has predicted times beside
# measured ones, parity of all layouts, and what doctor says.
#
#   tests/gpu/first_hour_test.sh BUILD_FOLDER
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
page=$(mktemp)
trap 'rm -f "$page"' EXIT

FIRST_HOUR_TINY=1 tests/gpu/first_hour.sh "$1" "$page"

has() {  # what the page must have, as an extended regular expression
  grep -Eq -- "$1" "$page" || { echo "the page lacks $1" >&2; cat "$page" >&2; exit 1; }
}
has 'A rehearsal on the emulated GPU'
has '^\| doctor, 4 ranks \| ok \|'
has '^\| device tests \| ok \|'
for dtype in FLOAT32 BFLOAT16; do
  has "^$dtype: 5 runs, 1 weights; .*: as it must be\\.$"
done
# tokens/s, measured and predicted milliseconds, rates, MFU, memory
has '^\| A layers=1 width=32 tokens=120 \| [0-9]+ \| [0-9.]+ \| [0-9.]+ \| [0-9]+ \| [0-9]+ \| [0-9.]+ % \| [0-9]+ \|$'
has '^\| cublasLtMatmul \| [0-9]+ \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ % \|$'
has '^Decoding \(decode/1-1\): [0-9.]+ sentences/s'
