#!/usr/bin/env bash
# Builds the programs and runs the whole test suite.
#
#   tests/run.sh [--mpi openmpi|mpich|both] [--preset <name>] [--max-ranks <n>] [--full]
#                [--part <n>] [--no-install] [-- <options of ctest that choose tests: -R, -E, -L>]
#
#   --mpi         the MPI to test with; both: one run after the other (openmpi)
#   --preset      release, debug, asan, ... (release); with MPICH release or asan
#   --max-ranks   leave out the tests with more ranks
#   --full        also the tests labelled 'long', and all runs where others take a sample
#   --part        of the test programs one of n, which take turns from seed to seed; scripts are not affected
#   --no-install  do not look for missing packages
#
# Only what the chosen tests need is built. Long lists of runs are sampled by NANOTRON_SEED (chosen and printed here where
# it is not set). Each run ends with CTest's summary; the exit code is 0 only when all of them passed.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
mpi=openmpi preset=release max_ranks=0 full=0 part=1 install=1
ctest_options=()

usage() { sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case "$1" in
    --mpi) mpi="${2:-}"; shift ;;
    --preset) preset="${2:-}"; shift ;;
    --max-ranks) max_ranks="${2:-}"; shift ;;
    --full) full=1; export NANOTRON_FULL=1 ;;
    --part) part="${2:-}"; shift ;;
    --no-install) install=0 ;;
    --) shift; ctest_options=("$@"); break ;;
    -h | --help) usage; exit 0 ;;
    *) printf 'tests/run.sh: unknown option %s\n' "'$1'" >&2; usage >&2; exit 64 ;;
  esac
  shift
done

case "$preset" in
  release | mpich) mpich_preset=mpich ;;
  asan | mpich-asan) mpich_preset=mpich-asan ;;
  *) mpich_preset="" ;;
esac
if [ "$mpi" != openmpi ] && [ -z "$mpich_preset" ]; then
  printf 'tests/run.sh: with MPICH the preset is release or asan, not %s\n' "'$preset'" >&2
  exit 64
fi

export NANOTRON_SEED="${NANOTRON_SEED:-$(date +%s)}"
if [ "$install" = 1 ]; then jobscripts/install_dependencies.sh --mpi "$mpi" --tests; fi
# shellcheck source=../jobscripts/environment.sh
source jobscripts/environment.sh

# A compiler cache where there is one: equal sources in another folder are not compiled again.
if [ -z "${CMAKE_CXX_COMPILER_LAUNCHER:-}" ] && command -v ccache > /dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros,include_file_mtime,include_file_ctime}"
fi

# Labels of what this run leaves out, as one regular expression for ctest -LE.
excluded_labels() {
  local labels='^none$' ranks
  if [ "$full" = 0 ]; then labels+='|^long$'; fi
  if [ "$max_ranks" -gt 0 ]; then
    for ranks in $(seq $((max_ranks + 1)) 64); do labels+="|^np$ranks\$"; done
  fi
  echo "$labels"
}

# chosen_tests <preset> <option of ctest>...: their names. A test of many sizes runs on 1 and 2 ranks and on one larger number,
# which takes turns from seed to seed; --full: on all. --part: one of so many programs.
chosen_tests() {
  ctest --preset "$1" -N "${@:2}" | sed -n 's/^ *Test *#[0-9]*: //p' | awk -v seed="$NANOTRON_SEED" -v full="$full" -v part="$part" '
    { name[NR] = base[NR] = $0; size[NR] = 0
      if (match($0, /\.np[0-9]+$/)) { size[NR] = substr($0, RSTART + 3) + 0; base[NR] = substr($0, 1, RSTART - 1) }
      if (!(base[NR] in number)) number[base[NR]] = ++bases
      if (size[NR] > 2) ++larger[base[NR]] }
    END { for (i = 1; i <= NR; ++i)
            if ((size[i] == 0 || (int(seed / 12) + number[base[i]]) % part == 0) && (full || size[i] <= 2 || (seed + number[base[i]]) % larger[base[i]] == seen[base[i]]++)) print name[i] }'
}

# needed_targets <test>...: the test programs that these tests run; for scripts all that they start
needed_targets() {
  printf '%s\n' "$@" | sed -n -e 's/^\([a-z_]*\)\.\([a-z0-9_]*\)\..*np[0-9]*$/test_\1_\2/p' -e t -e 's/.*/nanotron_script_programs/p' | sort -u
}

# say_what_was_left_out <log of ctest>: of tests that passed too, whose output nobody sees (tests/support/skips.py, pytest)
say_what_was_left_out() {
  sed -n -E 's/^(skipped: |left out: |SKIPPED \[[0-9]+\] )/    &/p' "$1" | sort | uniq -c | sort -rn
}

# run_suite <preset>: configure, build, test
run_suite() {
  local name="$1" status=0 began=$SECONDS built tests targets
  printf '\n=== %s: configure and build\n' "$name"
  if ! { cmake --preset "$name" -DNANOTRON_BUILD_TESTS=ON &&
    mapfile -t tests < <(chosen_tests "$name" -LE "$(excluded_labels)" "${ctest_options[@]}") &&
    mapfile -t targets < <(needed_targets "${tests[@]}") && cmake --build --preset "$name" --target "${targets[@]}"; }
  then
    printf '=== %s: FAILED to build\n' "$name"
    return 1
  fi
  built=$SECONDS
  printf '\n=== %s: %s tests, NANOTRON_SEED=%s\n' "$name" "${#tests[@]}" "$NANOTRON_SEED"
  # slots, two for each core: a test takes two for each rank, a script, which mostly waits, one
  ctest --preset "$name" --no-tests=error -j "$((2 * CMAKE_BUILD_PARALLEL_LEVEL))" \
    -R "^($(IFS='|'; echo "${tests[*]//./\\.}"))\$" || status=$?
  say_what_was_left_out "build/$name/Testing/Temporary/LastTest.log"
  printf '=== %s: %s; built in %d s, tested in %d s\n' "$name" "$([ "$status" = 0 ] && echo passed || echo FAILED)" \
    "$((built - began))" "$((SECONDS - built))"
  return "$status"
}

status=0
case "$mpi" in
  openmpi) run_suite "$preset" || status=1 ;;
  mpich) run_suite "$mpich_preset" || status=1 ;;
  both)
    run_suite "$preset" || status=1
    run_suite "$mpich_preset" || status=1
    ;;
  *) usage >&2; exit 64 ;;
esac
exit "$status"
