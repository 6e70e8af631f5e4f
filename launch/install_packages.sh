#!/usr/bin/env bash
# Installs the Debian packages that building needs, if any is missing.
#
#   launch/install_packages.sh [--with-lints] [--with-fuzzer] [--with-lab]
#     [--with-emulated-gpu] [--with-slurm] [--with-bundle] [--with-container] [--help]
#
#   --with-lints   also clang-format, clang-tidy, ctags and chromium, which .ci/run uses
#   --with-fuzzer  also Clang with libFuzzer, with which tests/fuzz/run.py builds
#   --with-lab     also pandas, matplotlib and jinja2 of Debian's Python, which launch/lab/lab.py uses
#   --with-emulated-gpu   also Boost.Context, on whose fibers the tests' emulated GPU runs kernels
#   --with-bundle  also patchelf, with which cmake --install makes run paths relative, and debootstrap,
#                  in whose bare root a test runs the bundle
#   --with-container  also buildah, with which a test builds launch/container
#   --with-slurm   also Slurm, munge and shellcheck, with which the tests prove the jobs of launch/slurm
#
# Needs root or sudo only where something is missing. On a system without apt it changes nothing,
# says what is needed and ends with status 1.
set -euo pipefail
export LC_ALL=C

packages=(g++ cmake ninja-build ccache mold git ca-certificates pkg-config
  python3 python3-pip python3-yaml zlib1g-dev libzstd-dev libsodium-dev
  protobuf-compiler libprotobuf-dev libabsl-dev libgtest-dev libgmock-dev
  libsentencepiece-dev sentencepiece openmpi-bin libopenmpi-dev iproute2 locales)
for argument in "$@"; do
  case $argument in
    --with-lints) packages+=(clang-format clang-tidy universal-ctags chromium fonts-dejavu-core) ;;
    --with-fuzzer) packages+=(clang libclang-rt-dev) ;;
    --with-lab) packages+=(python3-pandas python3-matplotlib python3-jinja2) ;;
    --with-emulated-gpu) packages+=(libboost-context-dev) ;;
    --with-bundle) packages+=(patchelf debootstrap) ;;
    --with-container) packages+=(buildah debootstrap) ;;
    --with-slurm) packages+=(slurmctld slurmd slurm-client munge shellcheck) ;;
    --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "install_packages.sh: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "no apt here; building needs the equivalents of: ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  [[ $state == ii* ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "all ${#packages[@]} packages are installed"
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! sudo -n true 2>/dev/null && ! { [[ -t 0 ]] && sudo -v; }; then
    echo "neither root nor sudo; an administrator can run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -q -y --no-install-recommends "${missing[@]}"
