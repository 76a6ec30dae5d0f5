# shellcheck shell=bash disable=SC2034,SC2154  # it shares its variables with tests/gpu.sh
# Sourced by tests/gpu.sh: is it right? What others build on comes first, so that the first row that fails says most.

number=0 passed=yes log=""
# check <seconds> <name> <ranks> <expected exit code> <command>...: a row of the table; sets log, and passed to yes, no or
# not_run
check() {
  local limit="$1" name="$2" ranks="$3" expected="$4" code=0 began=$SECONDS result count
  shift 4
  number=$((number + 1))
  log="$logs/$(printf '%03d' "$number")_${name//[^A-Za-z0-9]/_}.log"
  if [ $((deadline - SECONDS)) -le 0 ]; then
    failed=1 passed=not_run
    say "| $name | $ranks | not run: $minutes minutes are over | |"
    return
  fi
  if [ "$ranks" -gt 1 ]; then set -- "$mpiexec" -n "$ranks" "$@"; fi
  NANOTRON_TEST_RANKS="$ranks" limited "$limit" "$@" >"$log" 2>&1 || code=$?
  count="$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\{0,1\}\..*/\1/p' "$log" | head -n 1)"
  passed=no
  if [ "$count" = 0 ]; then
    result="FAILED: no test of that name"
  elif [ "$code" = "$expected" ]; then
    passed=yes
    result="passed${count:+: $count tests}"
  elif [ "$code" = 124 ]; then
    result="FAILED: not done after $((SECONDS - began)) s"
  else
    result="FAILED, exit code $code"
  fi
  if [ "$passed" = no ]; then
    failed=1
    cp "$log" "$log.failed"
  fi
  say "| $name | $ranks | $result | $((SECONDS - began)) |"
}

# check_tests <seconds> <name> <ranks> <filter>: of nanotron_gpu_tests. After a failure each suite runs again in a process of
# its own: an illegal access fails all that its process does afterwards.
check_tests() {
  local suites suite
  check "$1" "$2" "$3" 0 "$tests" "--gtest_filter=$4"
  if [ "$passed" != no ]; then return; fi
  mapfile -t suites < <(limited 60 "$tests" --gtest_list_tests "--gtest_filter=$4" 2>/dev/null |
    sed -nE 's/^([A-Za-z][A-Za-z0-9_/]*)\.([[:space:]].*)?$/\1/p')
  if [ ${#suites[@]} -lt 2 ]; then return; fi
  for suite in "${suites[@]}"; do check 60 "alone: $suite" "$3" 0 "$tests" "--gtest_filter=$suite.*"; done
}

# Suites of the tests that train; all others are those of kernels.
golden='Models/AgainstPytorch*:Families/AgainstPytorch*:AgainstPytorchsMuon*:GoldenGeneration/*'
grids='Models/Families*:Models/Grids*:Modes/Choices*:Models/Pipelines*:Stages/Zero*:Matrix*:Context*:Models/Moe*:ExpertGemms*:Resume*'
collectives='Host/Collectives*:Ring*:SharedMemory*:Tree*'

correctness_of_kernels() {
  local rows=(
    'GEMM=Gemm*:GroupedGemms*:SumOrder*:Gram*'
    'attention=Attention*:Windows/Attention*:Rotary*'
    'norms and activations=RmsNorm*:LayerNorm*:Swiglu*:Gelu*:WeightedSwiglu*'
    'embedding, cross-entropy=Embedding*:CrossEntropy*'
    'fp8=Producers*:Quantise*'
    'optimizer=Adamw*:ElementOptimizers*:Muon*:Orthogonalise*:ExactSum*:ScaledHalf*'
    'experts=Routing*:Rows*') row others=""
  for row in "${rows[@]}"; do
    check_tests 90 "kernels: ${row%%=*}" 1 "${row#*=}"
    others+=":${row#*=}"
  done
  check_tests 90 "kernels: all others" 1 "-$golden:$grids:$collectives:NcclAlone*:Bf16.*$others"
}

# The loss that a log of nanotron_hpc gives for the last step.
last_loss() { sed -nE 's/^step +20\/20 +loss ([0-9.]+).*/\1/p' "$1" | head -n 1; }

# Ranks of one GPU over NCCL itself, which lets them since 2.30. Its thread blocks wait for each other on the device, so all of
# all ranks have to fit on it.
correctness_of_nccl() {
  local serial="$1" grid word ranks sets version
  check_tests 60 "NCCL, one rank" 1 'NcclAlone*'
  version="$(about nccl)"
  if ! [[ "$version" =~ ^[0-9.]+$ ]] || ! printf '2.30.0\n%s\n' "$version" | sort -V -C; then
    say "| NCCL, ranks that share the GPU | | not run: NCCL 2.30 or newer lets them, this is ${version:-none} | |"
    return
  fi
  for grid in dp=2 tp=2 pp=2 cp=2 "dp=2 pp=2" "tp=2 cp=2"; do
    ranks=1 sets=()
    for word in $grid; do ranks=$((ranks * ${word#*=})) sets+=(--set "parallel.$word"); done
    check 60 "NCCL, ranks that share the GPU: $grid" "$ranks" 0 env NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 NCCL_DEBUG=WARN \
      "$bin/nanotron_hpc" "${llama[@]}" --set "parallel.backend='nccl'" --set checkpoint.resume=none \
      --set "run.output_dir=$run-${grid// /-}" "${sets[@]}"
    if [ "$passed" != yes ]; then continue; fi
    if ! awk -v a="$(last_loss "$serial")" -v b="$(last_loss "$log")" 'BEGIN { exit !(a > 0 && b > 0 && (a - b) ^ 2 < 1e-7) }'; then
      failed=1
      cp "$log" "$log.failed"
      say "| loss of $grid | $ranks | FAILED: $(last_loss "$log"), one rank has $(last_loss "$serial") | |"
    fi
  done
}

correctness_by_sanitizer() {
  if [ "$vendor" = amd ]; then return; fi  # it is NVIDIA's
  local sanitizer small='RmsNorm*:LayerNorm*:Swiglu*:Gelu*:Embedding*:CrossEntropy*:Adamw*:ExactSum*:RoutingKernels*'
  if ! sanitizer="$(find_tool compute-sanitizer)"; then
    failed=1
    say "| compute-sanitizer | 1 | not run: it is neither in PATH nor in the toolkit | |"
    return
  fi
  # Modules that are loaded early are instrumented early, all of them. Questions that CUDA answers with an error are no faults.
  local common=(--report-api-errors no --target-processes all --error-exitcode 99)
  check 120 "compute-sanitizer memcheck, small kernels" 1 0 env CUDA_MODULE_LOADING=LAZY "$sanitizer" --tool memcheck \
    "${common[@]}" "$tests" "--gtest_filter=$small"
  check 120 "compute-sanitizer racecheck, small kernels" 1 0 env CUDA_MODULE_LOADING=LAZY "$sanitizer" --tool racecheck \
    "${common[@]}" "$tests" '--gtest_filter=RmsNorm*:CrossEntropy*'
  check 120 "compute-sanitizer memcheck, two training steps" 1 75 env CUDA_MODULE_LOADING=LAZY "$sanitizer" --tool memcheck \
    "${common[@]}" "$bin/nanotron_hpc" "${llama[@]}" --set checkpoint.resume=none --set "run.output_dir=$run-sanitizer" \
    --set run.stop_after_steps=2
}

correctness() {
  local tests="$bin/nanotron_gpu_tests" run="$scratch/run" ranks serial
  local llama=("$root/tests/golden/llama/input.deck" --set "data.path=$root/tests/golden/llama/tokens.h5"
    --set checkpoint.resume=auto --set "run.output_dir=$run")
  say "| seed | NANOTRON_SEED=${NANOTRON_SEED:=$(date +%s)} |"
  export NANOTRON_SEED
  say ""
  say "| check | ranks | result | s |"
  say "|---|---:|---|---:|"
  correctness_of_kernels
  check_tests 120 "golden runs: losses, gradients and tokens of PyTorch" 1 "$golden"
  if [ "$slower" = 1 ]; then
    check 90 "nanotron_bench --machine" 1 0 "$bin/nanotron_bench" --machine "$logs/machine.nml" --deck "${decks[0]}" \
      --set parallel.dp=1 --types bf16
  else
    say "| nanotron_bench --machine | | not run: an emulated GPU has no speed | |"
  fi
  check 30 "nanotron_hpc, stopped after 10 of 20 steps" 1 75 "$bin/nanotron_hpc" "${llama[@]}" --set run.stop_after_steps=10
  check 30 "nanotron_hpc, continues to the end" 1 0 "$bin/nanotron_hpc" "${llama[@]}"
  serial="$log"
  check 30 "nanotron_generate" 1 0 "$bin/nanotron_generate" --checkpoint "$run/checkpoints" --prompt-ids 1,2,3 \
    --max-new-tokens 8 --temperature 0 --ids
  correctness_of_nccl "$serial"
  for ranks in $rank_counts; do
    check_tests 90 "collectives and messages, staged through the host" "$ranks" "$collectives"
    check_tests 90 "grids against the serial run, staged" "$ranks" "$grids"
  done
  check_tests 90 "bf16 against fp32, 120 steps" 1 'Bf16.*'
  correctness_by_sanitizer
  say ""
  say "Staged: ranks that share a GPU exchange data through pinned host memory (parallel%backend = 'mpi'). Tolerances: doc/numerics.md."
  say "nanotron_bench --machine: measured rates of this GPU, machine.nml among the logs, for nanotron_hpc --plan --machine."
}
