# shellcheck shell=bash
# Sourced by the shell scripts: named stages with their times, a summary at the end, and the two
# stages that every script starts with.
#
#   source launch/stages.sh
#   stage "build" cmake --build build/release
#
# A stage runs under `set -e`: the first command that fails ends the script, and the summary,
# printed whatever happens, names the stage it was in. The command's exit status is the script's.

stages_summary=()
stages_current=""
stages_started=$SECONDS

note() { printf '   %s\n' "$*"; }

stage() {
  stages_current=$1
  shift
  local began=$SECONDS
  printf '\n== %s\n' "$stages_current"
  "$@"
  stages_summary+=("$(printf '%6d s  %s' $((SECONDS - began)) "$stages_current")")
  printf '== %s: %d s\n' "$stages_current" $((SECONDS - began))
  stages_current=""
}

print_stage_summary() {
  local status=$?
  [[ ${#stages_summary[@]} -gt 0 || -n $stages_current ]] || return "$status"
  printf '\n== summary\n'
  [[ ${#stages_summary[@]} -eq 0 ]] || printf '%s\n' "${stages_summary[@]}"
  [[ -z $stages_current ]] || printf '%9s %s\n' FAILED "$stages_current"
  printf '%6d s  in all, exit status %d\n' $((SECONDS - stages_started)) "$status"
}
trap print_stage_summary EXIT

left_out=()  # what could not be done, a sentence each; a script prints it at its end

# get_packages yes|no [--with-lints] [--with-lab]: no = install nothing.
get_packages() {
  if [[ $1 == no ]]; then
    note "--no-install: building with what is there"
  elif ! launch/install_packages.sh "${@:2}"; then
    left_out+=("packages: not installed, built with what is there")
  fi
}

# get_libtorch [--cuda]
get_libtorch() {
  if [[ -n ${DEEPNET_TORCH_ROOT:-} ]]; then
    note "using DEEPNET_TORCH_ROOT=$DEEPNET_TORCH_ROOT"
  elif ! launch/fetch_libtorch.sh "$@"; then
    echo "LibTorch could not be fetched: name one by DEEPNET_TORCH_ROOT=DIR" >&2
    return 1
  fi
}

# run_ctest FOLDER [ARGUMENT...]: three tests on two cores, for more than a quarter of their time
# is waiting.
run_ctest() {
  ctest --test-dir "$1" --parallel $((($(nproc) * 3 + 1) / 2)) --output-on-failure --no-tests=error \
    "${@:2}"
}

# has_nvcc: the first compiler that a build with CUDA finds is of a CUDA 13 toolkit.
has_nvcc() {
  local nvcc
  for nvcc in "${CUDACXX:-}" "${XDG_CACHE_HOME:-$HOME/.cache}"/deepnet/libtorch-*/nvidia/cu13/bin/nvcc \
    "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    [[ -x $nvcc ]] || continue
    [[ $("$nvcc" --version) == *"release 13."* ]]
    return
  done
  return 1
}
