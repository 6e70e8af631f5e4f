#!/usr/bin/env bash
# Succeeds if a command ends with the given exit code.
#
#   tests/mpi/exits_with.sh CODE COMMAND [ARGUMENT...]
set -euo pipefail
export LC_ALL=C
expected=$1
shift
code=0
"$@" || code=$?
if [[ $code -ne $expected ]]; then
  echo "exit code $code instead of $expected: $*" >&2
  exit 1
fi
