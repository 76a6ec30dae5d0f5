#!/usr/bin/env bash
# What a machine with a GPU of NVIDIA or AMD is asked, in one command: is it right, how fast is it, where does the time go.
#
#   tests/gpu.sh [options] correctness   kernels in all types against the host's values, golden runs, a machine file, training,
#                                        NCCL, several ranks on one GPU, compute-sanitizer
#   tests/gpu.sh [options] speed         training steps of a deck, beside PyTorch with the same model and batch
#   tests/gpu.sh [options] experts       training steps of a layer of experts, with both kinds of GEMMs
#   tests/gpu.sh [options] profile       the ten heaviest kernels of a step: by nsys, else ncu, else the program's timers
#   tests/gpu.sh --bundle <folder> [--build <folder>] [-- <options of cmake>]
#                                        a folder of at most 50 MiB with all of this for a machine that has a driver,
#                                        cuBLAS, NCCL and cuDNN and nothing else; from a CUDA build, made here or at --build
#
#   --preset <name>      programs of build/<name>/bin (cuda; hip for AMD GPUs); in a bundle its own
#   --bin <folder>       programs of this folder
#   --out <folder>       write the table there too, and all logs in one archive
#   --deck <file>        of speed (several times), profile and the machine file; else the largest of input/qwen2_1b5.deck,
#                        llama3_3b.deck and llama_7b.deck that the memory of the GPU holds
#   --set <group.name=value>   overrides the decks of speed and profile
#   --steps <n>          measured steps of speed and profile (10, 2)
#   --minutes <n>        of the whole call (9)
#   --ranks "<n>..."     of correctness, several on one GPU ("2 4")
#   --python <program>   with PyTorch (python3)
#
# Exit code: 0 all of it was there and passed; 1 something failed or is missing, which the table says; 64 wrong options.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/.." && pwd)"
usage() { sed -n '3,/^set -euo/{/^set/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
wrong() {
  printf 'tests/gpu.sh: %s; see tests/gpu.sh --help\n' "$*" >&2
  rm -rf ${logs:+"$logs"}  # nothing was measured
  exit 64
}

what="" bin="$root/bin" out="" bundle="" build="" steps="" minutes=9 rank_counts="2 4" python=python3
decks=() overrides=()
command_line="tests/gpu.sh $*"
[ -d "$bin" ] || bin="$root/build/cuda/bin"
while [ $# -gt 0 ]; do
  case "$1" in
    --bundle | --build | --preset | --bin | --out | --deck | --set | --steps | --minutes | --ranks | --python)
      [ $# -ge 2 ] || wrong "$1 needs a value" ;;
  esac
  case "$1" in
    --bundle) bundle="$2"; shift ;;
    --build) build="$2"; shift ;;
    --preset) bin="$root/build/$2/bin"; shift ;;
    --bin) bin="$2"; shift ;;
    --out) out="$2"; shift ;;
    --deck) decks+=("$(realpath -- "$2")"); shift ;;
    --set) overrides+=(--set "$2"); shift ;;
    --steps) steps="$2"; shift ;;
    --minutes) minutes="$2"; shift ;;
    --ranks) rank_counts="$2"; shift ;;
    --python) python="$2"; shift ;;
    --) shift; break ;;
    -h | --help) usage; exit 0 ;;
    correctness | speed | experts | profile) [ -z "$what" ] || wrong "'$what' and '$1' are two commands"; what="$1" ;;
    *) wrong "unknown option '$1'" ;;
  esac
  shift
done
if [ -n "$bundle" ]; then
  [ -z "$what" ] || wrong "--bundle and '$what' are two commands"
  exec "$here/gpu/bundle.sh" "$bundle" "$build" "$@"
fi
[ -n "$what" ] || wrong "say what: correctness, speed, experts, profile or --bundle <folder>"
[[ "$minutes" =~ ^[0-9]+$ ]] || wrong "--minutes is a number, not '$minutes'"
[[ "$steps" =~ ^[0-9]*$ ]] || wrong "--steps is a number, not '$steps'"
for deck in "${decks[@]}"; do [ -f "$deck" ] || wrong "no deck $deck"; done
for program in nanotron_hpc nanotron_bench nanotron_generate nanotron_gpu_tests; do
  [ -x "$bin/$program" ] || wrong "no program $bin/$program (--preset, --bin; cmake --build --preset <name> --target nanotron_programs nanotron_gpu_tests)"
done
bin="$(cd "$bin" && pwd)"

export CUDA_DEVICE_ORDER=PCI_BUS_ID GTEST_COLOR=no OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none NANOTRON_TEST_DIR="$root/tests"
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none  # from Open MPI 5 on
if [ -f "$root/environment.sh" ]; then  # in a bundle
  # shellcheck source=gpu/environment.sh
  source "$root/environment.sh"
  if [ -n "$NANOTRON_MISSING" ]; then
    printf 'tests/gpu.sh: not on this machine, or not where %s looks: %s\n' "$root/environment.sh" "$NANOTRON_MISSING" >&2
    exit 1
  fi
fi
mpiexec="${NANOTRON_MPIEXEC:-mpiexec}"
[ ! -x "$bin/mpiexec" ] || mpiexec="$bin/mpiexec"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
started="$(date -u +%Y-%m-%dT%H%M%SZ)"
logs="$scratch/logs"
[ -z "$out" ] || { mkdir -p "$out" && logs="$(cd "$out" && pwd)/${started}_$what"; }
mkdir -p "$logs"
report="$logs.md"  # as far as it is, also where the call is ended
failed=0 fitting=() slower=1 deadline=$((SECONDS + 60 * minutes))

# shellcheck source=gpu/report.sh
source "$here/gpu/report.sh"
# shellcheck source=gpu/correctness.sh
source "$here/gpu/correctness.sh"
# shellcheck source=gpu/speed.sh
source "$here/gpu/speed.sh"
# shellcheck source=gpu/profile.sh
source "$here/gpu/profile.sh"
"$bin/nanotron_hpc" --build-info >"$logs/build_info.log" 2>&1 || true
# An emulated GPU continues while the host sleeps; here it is to be one for all ranks. What takes seconds takes minutes there.
vendor="$(vendor_of_build)"
find_gpu
[ "$vendor" != emulated ] || { export NANOTRON_WAIT=sleep NANOTRON_EMULATED_SHARED_GPU=1 && slower=20; }
[ ${#decks[@]} -gt 0 ] || [ "$what" = experts ] || choose_decks
head_of_report
"$what"
finish
