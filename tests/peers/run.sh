#!/usr/bin/env bash
# Compares exports and imports with Hugging Face transformers and CTranslate2.
#
#   tests/peers/run.sh [--python PROGRAM] [--help] [HF_CHECK_ARGUMENT...]
#
#   --python PROGRAM   a Python that has the packages of tests/peers/requirements.txt; otherwise a
#                      virtual environment is made in build/peers (some GB from PyPI)
#
# Builds what it needs. Everything else goes to tests/peers/hf_check.py.
set -euo pipefail

python=
if [[ "${1:-}" == --help ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
  exit 0
fi
if [[ "${1:-}" == --python ]]; then
  python=$2
  shift 2
fi
cd "$(dirname "$0")/../.."
launch/build.sh deepnet peer_model
if [[ -z $python ]]; then
  python=build/peers/bin/python
  if [[ ! -x $python ]]; then
    python3 -m venv build/peers
    build/peers/bin/pip install -q -r tests/peers/requirements.txt
  fi
fi
exec "$python" tests/peers/hf_check.py "$@"
