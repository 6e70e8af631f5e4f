#!/usr/bin/env bash
# Compares exports and imports with Hugging Face transformers, CTranslate2 and torchscale, has PyTorch's
# torchrun start ranks, and TensorBoard and promtool read a run: the ctest label `peers`.
#
#   tests/peers/run.sh [--venv FOLDER] [--help] [CTEST_ARGUMENT...]
#
#   --venv FOLDER   a virtual environment with tests/peers/requirements.txt, made where it is missing
#                   (2.5 GB from PyPI, 5 GB on disk; default: build/peers)
#
# Builds what it needs and runs the tests. Afterwards `ctest --test-dir build/release -L peers` does,
# too. Checkpoints of one's own: tests/peers/hf_check.py --help, with that environment's Python.
set -euo pipefail
export LC_ALL=C
venv=
case "${1:-}" in
  --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
  --venv) venv=$(realpath -m "$2"); shift 2 ;;
esac
cd "$(dirname "$0")/../.."
venv=${venv:-$PWD/build/peers}
# Complete once pip has ended well: then the file says of what.
wanted=$(cat tests/peers/requirements.txt tests/peers/run.sh | sha256sum)
if [[ $(cat "$venv/installed" 2>/dev/null) != "$wanted" ]]; then
  python3 -I -m venv "$venv"
  "$venv/bin/python" -I -m pip install -q -r tests/peers/requirements.txt
  "$venv/bin/python" -I -m pip install -q --no-deps torchscale==0.3.0  # what it asks for is not used
  # promtool, of Debian's package without installing it
  (cd "$venv" && apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb prometheus \
    && mv prometheus/usr/bin/promtool bin && rm -r prometheus prometheus_*.deb)
  echo "$wanted" >"$venv/installed"
fi
launch/build.sh deepnet peer_model
cmake -S . -B build/release -DDEEPNET_PEERS_VENV="$venv" >/dev/null  # registers the tests
exec ctest --test-dir build/release -L '^peers$' --output-on-failure --no-tests=error "$@"
