#!/usr/bin/env bash
# Compares exports and imports with Hugging Face transformers and CTranslate2.
#
#   tests/peers/run.sh [--python PROGRAM | --venv FOLDER] [--help] [HF_CHECK_ARGUMENT...]
#
#   --python PROGRAM   a Python that has the packages of tests/peers/requirements.txt
#   --venv FOLDER      otherwise: a virtual environment with them, made where it is missing (some GB
#                      from PyPI; default: build/peers)
#
# Builds what it needs. Everything else goes to tests/peers/hf_check.py.
set -euo pipefail

python=
venv=
case "${1:-}" in
  --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
  --python) python=$2; shift 2 ;;
  --venv) venv=$(realpath -m "$2"); shift 2 ;;
esac
cd "$(dirname "$0")/../.."
launch/build.sh deepnet peer_model
if [[ -z $python ]]; then
  venv=${venv:-build/peers}
  python=$venv/bin/python
  # Complete once pip has ended well: then the file is there.
  if [[ ! -f $venv/installed ]]; then
    python3 -m venv "$venv"
    "$python" -m pip install -q -r tests/peers/requirements.txt
    touch "$venv/installed"
  fi
fi
exec "$python" tests/peers/hf_check.py "$@"
