# shellcheck shell=bash disable=SC2034,SC2154  # it shares its variables with tests/gpu.sh
# Sourced by tests/gpu.sh: how fast is it?

# bench <seconds> <deck> <name of the log> <steps> [<type> [<option>...]]: nanotron_bench's training steps in bf16 or this type,
# to $logs/<name>.json
bench() {
  limited "$1" "${wrapper[@]}" "$bin/nanotron_bench" --deck "$2" "${overrides[@]}" --set parallel.dp=1 --only step \
    --types "${5:-bf16}" --rounds 1 --steps "$4" --json "$logs/$3.json" "${@:6}" >"$logs/$3.log" 2>&1
}

# tflop_per_token <JSON file of nanotron_bench>: rate * seconds of the first step over its tokens
tflop_per_token() {
  local deck_says='s/.*[^a-z_]\(KEY *= *\)\([0-9][0-9]*\).*/\2/'
  awk -v batch="$(sed -n "/\"deck\"/{${deck_says/KEY/global_batch_size};p}" "$1")" \
    -v length_="$(sed -n "/\"deck\"/{${deck_says/KEY/sequence_length};p}" "$1")" \
    '/"gflops": \[/ { getline; rate = $1 + 0 } /"seconds": \[/ { getline; seconds = $1 + 0 }
     END { print rate * seconds / 1e3 / (batch * length_) }' "$1"
}

# speed_row <deck> <program> <name of the log> <command>...: runs it, and a row of what it wrote to $logs/<name>.json. flop and
# gemm, of the first row of a deck, are TFLOP per token and the GEMM peak in TFLOP/s.
speed_row() {
  local deck="$1" program="$2" log="$logs/$3" code=0 reason
  shift 3
  watched "$log.gpu" "$@" || code=$?
  if [ "$code" != 0 ]; then
    failed=1
    cp "$log.log" "$log.log.failed"
    reason="$(grep -m 1 -i error "$log.log" || tail -n 1 "$log.log")"
    [ "$code" != 124 ] || reason="the time was over"
    say "| $deck | $program | FAILED: $(tr '|' '/' <<<"${reason:-exit code $code}") | | | | | | | |"
    return 1
  fi
  if [ -z "$flop" ]; then
    flop="$(tflop_per_token "$log.json")"
    gemm="$(value "$log.json" ceiling_text | awk '{ print $1 / 1e3 }')"
  fi
  awk -v deck="$deck" -v program="$program" -v ms="$(value "$log.json" ms_text)" -v rate="$(value "$log.json" tokens_per_second)" \
    -v flop="$flop" -v gemm="$gemm" -v peak="$peak" -v beside="$(beside "$log.gpu")" -v planned="$(value "$log.json" planned_mib)" '
    function share(of) { return of > 0 ? sprintf("%.1f", 100 * rate * flop / of) : "-" }
    BEGIN { printf "| %s | %s | %s | %.0f | %.3g | %s | %s | %s | %s |\n", deck, program, ms, rate, rate * flop, share(gemm), share(peak),
      beside, planned == "" ? "-" : sprintf("%.0f", planned) }' | tee -a "$report"
}

speed_head() {
  # As the vendor states it: dense, bf16 with sums in fp32, SXM.
  if grep -qE '^\| GPU.*\| NVIDIA (H100|H200|GH200)' "$report"; then peak=989.4; fi
  if grep -qE '^\| GPU.*\| NVIDIA A100' "$report"; then peak=312; fi
  if grep -qiE '^\| GPU.*MI300X' "$report"; then peak=1307.4; fi
  if grep -qiE '^\| GPU.*MI300A' "$report"; then peak=980.6; fi
  if grep -qiE '^\| GPU.*MI250X' "$report"; then peak=191.5; fi  # of a die
  say ""
  say "| deck | program | ms/step: median (min - max) | tokens/s | model TFLOP/s | of GEMM peak % | of stated peak % | MHz | W | MiB at most | MiB planned |"
  say "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
}

speed_notes() {
  say ""
  say "One rank on one GPU; for both the same model, batch, clipping and synthetic tokens; forward and backward in bf16, weights,"
  say "gradients and moments of AdamW in fp32. ms/step: wall time of a step, the device idle before and after it. tokens/s ="
  say "global_batch_size * sequence_length / median. model TFLOP/s = tokens/s * FLOP per token of \`nanotron_hpc --plan\`, in which"
  say "nothing computed twice counts. GEMM peak: the rate of bf16 GEMMs that nanotron_bench measured just before. Stated peak:"
  say "$peak TFLOP/s, of bf16 (0: not known). fp8: precision%compute = 'fp8'; its shares are of the peaks of bf16. MHz, W: means of"
  say "$smi_name's samples with the GPU busy. MiB at most: all that was in use on the GPU; planned: the program's own buffer."
}

speed() {
  local deck name flop gemm peak=0 wrapper=() count="${steps:-10}"
  speed_head
  for deck in "${decks[@]}"; do
    name="$(basename "$deck" .deck)" flop="" gemm=""
    speed_row "$name" "nanotron_bench, bf16" "$name" bench 150 "$deck" "$name" "$count" || continue
    speed_row "$name" "PyTorch" "${name}_pytorch" pytorch 240 "$name" "$count" || true
    speed_row "$name" "nanotron_bench, bf16, reproducible = 'run'" "${name}_reproducible" \
      bench 150 "$deck" "${name}_reproducible" "$count" bf16 --set "precision.reproducible='run'" || true
    speed_row "$name" "nanotron_bench, bf16, measured GEMM algorithms" "${name}_measured" \
      measured_algorithms "$deck" "${name}_measured" "$count" || true
    speed_row "$name" "nanotron_bench, fp8" "${name}_fp8" bench 150 "$deck" "${name}_fp8" "$count" fp8 || true
  done
  speed_notes
  for deck in "${fitting[@]}"; do
    if [ "$deck" != "${decks[0]}" ]; then say "It also holds: tests/gpu.sh --deck ${deck#"$root"/} speed"; fi
  done
}

# measured_algorithms <deck> <name of the log> <steps>: with the GEMM algorithms that it measures first
measured_algorithms() {
  bench 150 "$1" "$2" 1 bf16 --gemm-algorithms "$logs/$2.gemm" &&
    bench 150 "$1" "$2" "$3" bf16 --set "run.gemm_algorithms='$logs/$2.gemm'"
}

# pytorch <seconds> <name> <steps>: the model and batch of $logs/<name>.json
pytorch() {
  local log="$logs/$2_pytorch"
  limited "$1" "$python" "$here/benchmarks/pytorch_step.py" "$logs/$2.json" --steps "$3" --json "$log.json" >"$log.log" 2>&1
}

# A layer of experts as wide as those of models that are trained, with both kinds of GEMMs.
experts() {
  local gemms flop="" gemm="" peak=0 wrapper=()
  local wider=(--set "precision.compute='bf16'" --set parallel.ep=1 --set model.hidden_size=2048 --set model.intermediate_size=4096 --set model.num_attention_heads=16
    --set data.sequence_length=2048 --set data.global_batch_size=8 --set data.micro_batch_size=4)
  speed_head
  for gemms in library grouped; do
    if [ "$vendor $gemms" = "amd grouped" ]; then continue; fi  # kernels for NVIDIA's tensor cores
    speed_row "mixtral_90m, wider" "nanotron_bench, bf16, expert_gemms = '$gemms'" "experts_$gemms" \
      bench 240 "$root/input/mixtral_90m.deck" "experts_$gemms" "${steps:-10}" bf16 "${wider[@]}" --set "run.expert_gemms='$gemms'" || true
  done
  speed_notes
}
