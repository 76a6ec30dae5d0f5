#!/usr/bin/env bash
# shellcheck disable=SC2317  # by_<tool> are called by their names
# What a machine with a GPU is asked, in one command: is it right, how fast is it, where does the time go.
#
#   tests/gpu.sh [options] correctness   kernels in all types against the host's values, golden runs, several ranks on one
#                                        GPU, NCCL with one rank, compute-sanitizer: at most 8 minutes
#   tests/gpu.sh [options] speed         training steps of the decks, beside PyTorch with the same model and batch; without
#                                        --deck also of experts, with both kinds of GEMMs
#   tests/gpu.sh [options] profile       the ten heaviest kernels of a step: by nsys, else ncu, else the program's timers
#   tests/gpu.sh --bundle <folder> [--build <folder>] [-- <options of cmake>]
#                                        a folder of at most 60 MiB with all of this for a machine that has a driver,
#                                        cuBLAS and NCCL and nothing else; from a CUDA build, made here or at --build
#
#   --preset <name>      programs of build/<name>/bin (cuda); in a bundle its own
#   --bin <folder>       programs of this folder
#   --out <folder>       write the table and all logs there too
#   --deck <file>        of speed (several times) and profile; else input/qwen2_1b5.deck and input/llama_7b.deck
#   --set <group.name=value>   overrides the decks of speed and profile
#   --steps <n>          measured steps of speed and profile (10, 2)
#   --minutes <n>        of correctness in all (8)
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
  exit 64
}

what="" bin="$root/bin" out="" bundle="" build="" steps="" minutes=8 rank_counts="2 4" python=python3
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
    correctness | speed | profile) [ -z "$what" ] || wrong "'$what' and '$1' are two commands"; what="$1" ;;
    *) wrong "unknown option '$1'" ;;
  esac
  shift
done
if [ -n "$bundle" ]; then
  [ -z "$what" ] || wrong "--bundle and '$what' are two commands"
  exec "$here/gpu/bundle.sh" "$bundle" "$build" "$@"
fi
[ -n "$what" ] || wrong "say what: correctness, speed, profile or --bundle <folder>"
[[ "$minutes" =~ ^[0-9]+$ ]] || wrong "--minutes is a number, not '$minutes'"
[[ "$steps" =~ ^[0-9]*$ ]] || wrong "--steps is a number, not '$steps'"
for deck in "${decks[@]}"; do [ -f "$deck" ] || wrong "no deck $deck"; done
for program in nanotron_hpc nanotron_bench nanotron_generate nanotron_gpu_tests; do
  [ -x "$bin/$program" ] || wrong "no program $bin/$program (--preset, --bin; cmake --build --preset <name> --target nanotron_programs nanotron_gpu_tests)"
done
bin="$(cd "$bin" && pwd)"

export GTEST_COLOR=no OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
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
report="$scratch/report.md"
failed=0

say() { printf '%s\n' "$*" | tee -a "$report"; }
# value <file> <key>: of the first such key of a JSON file, without its quotes
value() { sed -n "s/^.*\"$2\": *\"\{0,1\}\([^\",]*\(, [^\",]*\)*\)\"\{0,1\},\{0,1\}$/\1/p" "$1" | head -n 1; }
# find_tool <name>: its path, in PATH or where the toolkit and the images of NVIDIA have it
find_tool() {
  command -v "$1" && return
  local folder
  for folder in "${CUDA_HOME:-/usr/local/cuda}"/{bin,compute-sanitizer} /opt/nvidia/nsight-{systems,compute}/*{,/bin}; do
    if [ -x "$folder/$1" ]; then printf '%s\n' "$folder/$1"; return; fi
  done
  return 1
}

# The head of every report: what was measured, where, with what.
head_of_report() {
  "$bin/nanotron_hpc" --build-info >"$logs/build_info.log" 2>&1 || true
  about() { sed -n "s/^$1: //p" "$logs/build_info.log"; }
  local gpu="none that nvidia-smi knows" dirty=""
  ! find_tool nvidia-smi >/dev/null || gpu="$("$(find_tool nvidia-smi)" \
    --query-gpu=name,memory.total,driver_version,clocks.max.sm --format=csv,noheader 2>&1 | paste -sd ';')"
  # An emulated GPU goes on while the host sleeps; here it is to be one for all ranks.
  [ "$(about cuda)" != none ] || export NANOTRON_WAIT=sleep NANOTRON_EMULATED_SHARED_GPU=1
  [ "$(about git_dirty)" = no ] || dirty=", with changes"
  say "# $what, $started"
  say ""
  say "| | |"
  say "|---|---|"
  say "| commit | $(about git_hash)$dirty, version $(about version) |"
  say "| GPU | $gpu |"
  say "| host | $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1), $(getconf _NPROCESSORS_ONLN) cores, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo 2>/dev/null) |"
  say "| build | $(about build_type), $(about compiler), CUDA $(about cuda), driver for CUDA $(about cuda_driver), Kokkos $(about kokkos), $(about mpi | sed 's/, package.*//') |"
  say "| command | \`$command_line\` |"
}

finish() {
  if [ -n "$out" ]; then
    cp "$report" "$logs.md"
    printf '\nwritten: %s.md, logs in %s\n' "$logs" "$logs"
  elif [ "$failed" != 0 ]; then
    printf '\nlogs of what failed:\n'
    tail -n 40 "$logs"/*.failed 2>/dev/null || true
  fi
  exit "$failed"
}

# correctness --------------------------------------------------------------------------------------
number=0
# check <name> <ranks> <expected exit code> <command>...: a row of the table
check() {
  local name="$1" ranks="$2" expected="$3" code=0 began=$SECONDS left=$((deadline - SECONDS)) log result tests
  shift 3
  number=$((number + 1))
  log="$logs/$(printf '%02d' "$number")_${name//[^A-Za-z0-9]/_}.log"
  if [ "$left" -le 0 ]; then
    failed=1
    say "| $name | $ranks | not run: $minutes minutes are over | |"
    return
  fi
  if [ "$ranks" -gt 1 ]; then set -- "$mpiexec" -n "$ranks" "$@"; fi
  NANOTRON_TEST_RANKS="$ranks" timeout -k 5 "$left" "$@" >"$log" 2>&1 </dev/null || code=$?
  tests="$(sed -n 's/^\[  PASSED  \] \([0-9]* tests\{0,1\}\)\..*/: \1/p' "$log" | head -n 1)"
  if [ "$code" = "$expected" ]; then
    result="passed$tests"
  else
    failed=1
    result="FAILED, exit code $code"
    [ "$code" != 124 ] || result="FAILED: not done when $minutes minutes were over"
    cp "$log" "$log.failed"
  fi
  say "| $name | $ranks | $result | $((SECONDS - began)) |"
}

correctness() {
  # Suites of the tests that train; all other suites are those of kernels.
  local golden='Models/AgainstPytorch*:Families/AgainstPytorch*:AgainstPytorchsMuon*:GoldenGeneration/*'
  local grids='Models/Families*:Models/Grids*:Modes/Choices*:Models/Pipelines*:Stages/Zero*:Matrix*:Context*:Models/Moe*:ExpertGemms*:Resume*'
  local collectives='Host/Collectives*:Ring*:SharedMemory*:Tree*'
  local small='RmsNorm*:LayerNorm*:Swiglu*:Gelu*:Embedding*:CrossEntropy*:Adamw*:ExactSum*:RoutingKernels*'
  local tests="$bin/nanotron_gpu_tests" run="$scratch/run" sanitizer ranks deadline=$((SECONDS + 60 * minutes))
  local llama=("$root/tests/golden/llama/input.deck" --set "data.path=$root/tests/golden/llama/tokens.h5"
    --set checkpoint.resume=auto --set "run.output_dir=$run")
  say "| seed | NANOTRON_SEED=${NANOTRON_SEED:=$(date +%s)} |"
  export NANOTRON_SEED
  say ""
  say "| check | ranks | result | s |"
  say "|---|---:|---|---:|"
  check "kernels, all types, against the host" 1 0 "$tests" "--gtest_filter=-$golden:$grids:$collectives:NcclAlone*:Bf16*"
  check "golden runs: losses, gradients and tokens of PyTorch" 1 0 "$tests" "--gtest_filter=$golden"
  check "NCCL" 1 0 env NCCL_DEBUG=VERSION "$tests" '--gtest_filter=NcclAlone*'
  check "nanotron_hpc, stopped after 10 of 20 steps" 1 75 "$bin/nanotron_hpc" "${llama[@]}" --set run.stop_after_steps=10
  check "nanotron_hpc, goes on to the end" 1 0 "$bin/nanotron_hpc" "${llama[@]}"
  check "nanotron_generate" 1 0 "$bin/nanotron_generate" --checkpoint "$run/checkpoints" --prompt-ids 1,2,3 \
    --max-new-tokens 8 --temperature 0 --ids
  for ranks in $rank_counts; do
    check "collectives and messages, staged through the host" "$ranks" 0 "$tests" "--gtest_filter=$collectives"
    check "grids against the serial run, staged" "$ranks" 0 "$tests" "--gtest_filter=$grids"
  done
  check "bf16 against fp32, 120 steps" 1 0 "$tests" '--gtest_filter=Bf16*'
  if sanitizer="$(find_tool compute-sanitizer)"; then
    check "compute-sanitizer memcheck, small kernels" 1 0 "$sanitizer" --tool memcheck --target-processes all \
      --error-exitcode 99 "$tests" "--gtest_filter=$small"
    check "compute-sanitizer racecheck, small kernels" 1 0 "$sanitizer" --tool racecheck --target-processes all \
      --error-exitcode 99 "$tests" '--gtest_filter=RmsNorm*:CrossEntropy*'
    check "compute-sanitizer memcheck, two training steps" 1 75 "$sanitizer" --tool memcheck --target-processes all \
      --error-exitcode 99 "$bin/nanotron_hpc" "${llama[@]}" --set checkpoint.resume=none --set "run.output_dir=$run-2" \
      --set run.stop_after_steps=2
  else
    failed=1
    say "| compute-sanitizer | 1 | not run: it is neither in PATH nor in the toolkit | |"
  fi
  say ""
  say "Staged: ranks that share a GPU exchange data through pinned host memory (parallel%backend = 'auto'). Tolerances: doc/numerics.md."
}

# speed --------------------------------------------------------------------------------------------
# bench <deck> <name of the log> <steps> [<type> [<option>...]]: nanotron_bench's training steps in bf16 or this type, to
# $logs/<name>.json
bench() {
  "${wrapper[@]}" "$bin/nanotron_bench" --deck "$1" "${overrides[@]}" --set parallel.dp=1 --only step --types "${4:-bf16}" \
    --rounds 1 --steps "$3" --json "$logs/$2.json" "${@:5}" >"$logs/$2.log" 2>&1
}

# tflop_per_token <JSON file of nanotron_bench>: rate * seconds of the first step over its tokens
tflop_per_token() {
  local deck_says='s/.*[^a-z_]\(KEY *= *\)\([0-9][0-9]*\).*/\2/'
  awk -v batch="$(sed -n "/\"deck\"/{${deck_says/KEY/global_batch_size};p}" "$1")" \
    -v length_="$(sed -n "/\"deck\"/{${deck_says/KEY/sequence_length};p}" "$1")" \
    '/"gflops": \[/ { getline; rate = $1 + 0 } /"seconds": \[/ { getline; seconds = $1 + 0 }
     END { print rate * seconds / 1e3 / (batch * length_) }' "$1"
}

row_of_speed() {  # <deck> <program> <JSON file> <TFLOP per token> <GEMM peak in TFLOP/s>
  awk -v deck="$1" -v program="$2" -v ms="$(value "$3" ms_text)" -v rate="$(value "$3" tokens_per_second)" -v flop="$4" \
    -v gemm="$5" -v peak="$peak" 'function share(of) { return of > 0 ? sprintf("%.1f", 100 * rate * flop / of) : "-" }
    BEGIN { printf "| %s | %s | %s | %.0f | %.3g | %s | %s |\n", deck, program, ms, rate, rate * flop, share(gemm), share(peak) }' |
    tee -a "$report"
}

# A layer of experts as wide as those of models that are trained, with both kinds of GEMMs.
speed_of_experts() {
  local deck="$root/input/mixtral_90m.deck" gemms name flop gemm
  local wider=(--set parallel.ep=1 --set model.hidden_size=2048 --set model.intermediate_size=4096 --set model.num_attention_heads=16
    --set data.sequence_length=2048 --set data.global_batch_size=8 --set data.micro_batch_size=4)
  for gemms in library grouped; do
    name="experts_$gemms"
    if bench "$deck" "$name" "${steps:-10}" bf16 "${wider[@]}" --set "run.expert_gemms='$gemms'"; then
      flop="$(tflop_per_token "$logs/$name.json")"
      gemm="$(value "$logs/$name.json" ceiling_text | awk '{ print $1 / 1e3 }')"
      row_of_speed "mixtral_90m, wider" "nanotron_bench, bf16, expert_gemms = '$gemms'" "$logs/$name.json" "$flop" "$gemm"
    else
      failed=1
      cp "$logs/$name.log" "$logs/$name.log.failed"
      say "| mixtral_90m, wider | nanotron_bench, expert_gemms = '$gemms' | FAILED: $(grep -m 1 -i error "$logs/$name.log" | tr '|' '/' || true) | | | | |"
    fi
  done
}

speed() {
  local deck name flop gemm peak=0 torch wrapper=()
  # As the vendor states it: dense, bf16 with sums in fp32, SXM.
  if grep -qE '^\| GPU \| NVIDIA (H100|H200|GH200)' "$report"; then peak=989.4; fi
  if grep -qE '^\| GPU \| NVIDIA A100' "$report"; then peak=312; fi
  say ""
  say "| deck | program | ms/step: median (min - max) | tokens/s | model TFLOP/s | of GEMM peak % | of stated peak % |"
  say "|---|---|---:|---:|---:|---:|---:|"
  for deck in "${decks[@]}"; do
    name="$(basename "$deck" .deck)"
    if ! bench "$deck" "$name" "${steps:-10}"; then
      failed=1
      cp "$logs/$name.log" "$logs/$name.log.failed"
      say "| $name | nanotron_bench, bf16 | FAILED: $(grep -m 1 -i error "$logs/$name.log" | tr '|' '/' || true) | | | | |"
      continue
    fi
    flop="$(tflop_per_token "$logs/$name.json")"
    gemm="$(value "$logs/$name.json" ceiling_text | awk '{ print $1 / 1e3 }')"
    row_of_speed "$name" "nanotron_bench, bf16" "$logs/$name.json" "$flop" "$gemm"
    if bench "$deck" "${name}_measured" 1 bf16 --gemm-algorithms "$logs/$name.gemm" &&
      bench "$deck" "${name}_measured" "${steps:-10}" bf16 --set "run.gemm_algorithms='$logs/$name.gemm'"; then
      row_of_speed "$name" "nanotron_bench, bf16, measured GEMM algorithms" "$logs/${name}_measured.json" "$flop" "$gemm"
    else
      failed=1
      cp "$logs/${name}_measured.log" "$logs/${name}_measured.log.failed"
      say "| $name | nanotron_bench, measured GEMM algorithms | FAILED: $(grep -m 1 -i error "$logs/${name}_measured.log" | tr '|' '/' || true) | | | | |"
    fi
    if bench "$deck" "${name}_fp8" "${steps:-10}" fp8; then
      row_of_speed "$name" "nanotron_bench, fp8" "$logs/${name}_fp8.json" "$flop" "$gemm"
    elif grep -qi memory "$logs/${name}_fp8.log" && bench "$deck" "${name}_fp8" "${steps:-10}" fp8 --set data.micro_batch_size=1; then
      row_of_speed "$name" "nanotron_bench, fp8, micro_batch_size = 1: else too large" "$logs/${name}_fp8.json" "$flop" "$gemm"
    else
      failed=1
      cp "$logs/${name}_fp8.log" "$logs/${name}_fp8.log.failed"
      say "| $name | nanotron_bench, fp8 | FAILED: $(grep -m 1 -i error "$logs/${name}_fp8.log" | tr '|' '/' || true) | | | | |"
    fi
    torch="$logs/${name}_pytorch"
    if "$python" "$here/benchmarks/pytorch_step.py" "$logs/$name.json" --steps "${steps:-10}" --json "$torch.json" >"$torch.log" 2>&1; then
      row_of_speed "$name" "$(value "$torch.json" program)" "$torch.json" "$flop" "$gemm"
    else
      failed=1
      cp "$torch.log" "$torch.log.failed"
      say "| $name | PyTorch | not measured: $(tail -n 1 "$torch.log" | tr '|' '/') | | | | |"
    fi
  done
  [ "$own_decks" = no ] || speed_of_experts
  say ""
  say "One rank on one GPU; for both the same model, batch, clipping and synthetic tokens; forward and backward in bf16, weights,"
  say "gradients and moments of AdamW in fp32. ms/step: wall time of a step, the device idle before and after it. tokens/s ="
  say "global_batch_size * sequence_length / median. model TFLOP/s = tokens/s * FLOP per token of \`nanotron_hpc --plan\`, in which"
  say "nothing computed twice counts. GEMM peak: the rate of bf16 GEMMs that nanotron_bench measured just before. Stated peak:"
  say "$peak TFLOP/s, of bf16 (0: not known). fp8: precision%compute = 'fp8'; its shares are of the peaks of bf16."
}

# profile ------------------------------------------------------------------------------------------
# Rows '<share> <seconds> <calls> <kernel>' on stdin, the heaviest first: ten of them as a table.
table_of_kernels() {
  say ""
  say "| kernel | calls | ms | share % |"
  say "|---|---:|---:|---:|"
  sort -t "$(printf '\t')" -k2,2gr | head -n 10 | awk -F '\t' '{
    name = $4
    gsub(/\|/, "/", name)
    printf "| `%s` | %d | %.3f | %.1f |\n", substr(name, 1, 120), $3, 1e3 * $2, $1 }' | tee -a "$report"
}

by_nsys() {  # <deck> <name>
  local nsys wrapper
  nsys="$(find_tool nsys)" || return 1
  wrapper=("$nsys" profile --trace=cuda --sample=none --cpuctxsw=none --force-overwrite=true --output "$logs/$2")
  bench "$1" "$2_nsys" "${steps:-2}" &&
    "$nsys" stats --force-export=true --report cuda_gpu_kern_sum --format csv --output - "$logs/$2.nsys-rep" >"$logs/$2.csv" 2>"$logs/$2_stats.log" &&
    awk -F , -v OFS='\t' '/^[0-9.]+,[0-9]+,/ { name = $9; for (i = 10; i <= NF; ++i) name = name "," $i
      gsub(/"/, "", name); print $1, $2 / 1e9, $3, name }' "$logs/$2.csv" >"$logs/$2.rows" && [ -s "$logs/$2.rows" ]
}

by_ncu() {  # <deck> <name>: time of each launch, one counter, so one pass
  local ncu wrapper
  ncu="$(find_tool ncu)" || return 1
  wrapper=("$ncu" --clock-control none --target-processes all --metrics gpu__time_duration.sum --csv --page raw
    --print-units base --log-file "$logs/$2.csv")
  bench "$1" "$2_ncu" 1 &&
    awk -v OFS='\t' 'function fields(line, f,   n, i, quoted, c) { n = 1; f[1] = ""; quoted = 0
        for (i = 1; i <= length(line); ++i) { c = substr(line, i, 1)
          if (c == "\"") quoted = !quoted; else if (c == "," && !quoted) f[++n] = ""; else f[n] = f[n] c }
        return n }
      /Kernel Name/ { n = fields($0, f); for (i = 1; i <= n; ++i) { if (f[i] == "Kernel Name") k = i; if (f[i] ~ /gpu__time_duration/) t = i }; next }
      k && /^"[0-9]/ { fields($0, f); gsub(/,/, "", f[t]); time[f[k]] += f[t]; ++calls[f[k]]; total += f[t] }
      END { for (name in time) print 100 * time[name] / total, time[name] / 1e9, calls[name], name }' "$logs/$2.csv" >"$logs/$2.rows" &&
    [ -s "$logs/$2.rows" ]
}

by_timers() {  # <deck> <name>
  local wrapper=()
  bench "$1" "$2" "${steps:-2}" &&
    awk -v OFS='\t' '/^Where a step/ { on = 1; next } on && /^$/ { exit } on && NF >= 5 && $NF ~ /^[0-9.]+$/ {
      name = $1; for (i = 2; i <= NF - 4; ++i) name = name " " $i; print $NF, $(NF - 1) / 1e3, $(NF - 3), name }' \
      "$logs/$2.log" >"$logs/$2.rows" && [ -s "$logs/$2.rows" ]
}

profile() {
  local deck="${decks[0]}" name tool
  name="$(basename "$deck" .deck)"
  for tool in nsys ncu timers; do
    if "by_$tool" "$deck" "$name"; then
      say "| deck | $name |"
      case "$tool" in
        nsys) say "| by | nsys: ms and calls of the whole run with warm-up, share of all kernels |" ;;
        ncu) say "| by | ncu, one kernel at a time: ms and calls of the whole run with warm-up, share of all kernels |" ;;
        timers) say "| by | the program's timers: exclusive ms and calls of one step, share of the step |" ;;
      esac
      table_of_kernels <"$logs/$name.rows"
      return
    fi
    [ "$tool" = timers ] || printf '%s: not there, or it failed here\n' "$tool" >&2
  done
  failed=1
  cp "$logs/$name.log" "$logs/$name.log.failed"
  say ""
  say "FAILED: $(tail -n 1 "$logs/$name.log")"
}

own_decks=no
[ ${#decks[@]} -gt 0 ] || own_decks=yes decks=("$root/input/qwen2_1b5.deck" "$root/input/llama_7b.deck")
head_of_report
case "$what" in
  correctness) correctness ;;
  speed) speed ;;
  profile) profile ;;
esac
finish
