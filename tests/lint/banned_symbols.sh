#!/usr/bin/env bash
# Torch-free libraries stay so: no undefined symbol of MPI, LibTorch or CUDA in their archives.
#
#   tests/lint/banned_symbols.sh BUILD_FOLDER
#
# A torch-free build (-DDEEPNET_PURE_ONLY=ON) says which libraries those are: it has no others.
set -euo pipefail
export LC_ALL=C
build=$1
status=0
count=0
while read -r archive; do
  count=$((count + 1))
  if nm -C --undefined-only "$archive" 2>/dev/null |
    grep -E ' U (MPI_|(at|c10|torch)::|cuda[A-Z]|cublas|nccl[A-Z])' | sort -u | head -5; then
    echo "$archive: uses what a torch-free library may not" >&2
    status=1
  fi
done < <(find "$build" -name '*.a')
if [[ $count -eq 0 ]]; then
  echo "no archive in $build" >&2
  exit 1
fi
echo "banned symbols: $count archives looked at"
exit $status
