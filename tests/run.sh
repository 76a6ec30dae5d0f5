#!/usr/bin/env bash
# Builds the programs and runs the whole test suite.
#
#   tests/run.sh [--mpi openmpi|mpich|both] [--preset <name>] [--max-ranks <n>] [--full]
#                [--no-install] [-- <options of ctest>]
#
#   --mpi         the MPI to test with; both: one run after the other (openmpi)
#   --preset      release, debug, asan, ... (release)
#   --max-ranks   leave out the tests with more ranks
#   --full        also the tests labelled 'long', and all runs where others take a sample
#   --no-install  do not look for missing packages
#
# Each run ends with CTest's summary; the exit code is 0 only when all of them passed.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
mpi=openmpi preset=release max_ranks=0 full=0 install=1
ctest_options=()

usage() { sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case "$1" in
    --mpi) mpi="${2:-}"; shift ;;
    --preset) preset="${2:-}"; shift ;;
    --max-ranks) max_ranks="${2:-}"; shift ;;
    --full) full=1; export NANOTRON_FULL=1 ;;
    --no-install) install=0 ;;
    --) shift; ctest_options=("$@"); break ;;
    -h | --help) usage; exit 0 ;;
    *) printf 'tests/run.sh: unknown option %s\n' "'$1'" >&2; usage >&2; exit 64 ;;
  esac
  shift
done

if [ "$install" = 1 ]; then jobscripts/install_dependencies.sh --mpi "$mpi" --tests; fi
# shellcheck source=../jobscripts/environment.sh
source jobscripts/environment.sh

# Labels of what this run leaves out, as one regular expression for ctest -LE.
excluded_labels() {
  local labels='^none$' ranks
  if [ "$full" = 0 ]; then labels+='|^long$'; fi
  if [ "$max_ranks" -gt 0 ]; then
    for ranks in $(seq $((max_ranks + 1)) 64); do labels+="|^np$ranks\$"; done
  fi
  echo "$labels"
}

# run_suite <preset> [<option of cmake>...]: configure, build, test
run_suite() {
  local name="$1" status=0
  shift
  printf '\n=== %s: configure and build\n' "$name"
  cmake --preset "$name" -DNANOTRON_BUILD_TESTS=ON "$@" && cmake --build --preset "$name" || {
    printf '=== %s: FAILED to build\n' "$name"
    return 1
  }
  printf '\n=== %s: tests\n' "$name"
  ctest --preset "$name" --no-tests=error -j "$CMAKE_BUILD_PARALLEL_LEVEL" -LE "$(excluded_labels)" "${ctest_options[@]}" ||
    status=$?
  printf '=== %s: %s\n' "$name" "$([ "$status" = 0 ] && echo passed || echo FAILED)"
  return "$status"
}

status=0
case "$mpi" in
  openmpi) run_suite "$preset" || status=1 ;;
  mpich) run_suite mpich || status=1 ;;
  both)
    run_suite "$preset" || status=1
    run_suite mpich || status=1
    ;;
  *) usage >&2; exit 64 ;;
esac
exit "$status"
