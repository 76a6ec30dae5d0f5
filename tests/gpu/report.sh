# shellcheck shell=bash disable=SC2034,SC2154  # it shares its variables with tests/gpu.sh
# Sourced by tests/gpu.sh: its report, the GPU beside a measurement, how a call ends.

say() { printf '%s\n' "$*" | tee -a "$report"; }
# value <file> <key>: of the first such key of a JSON file, without its quotes
value() { sed -n "s/^.*\"$2\": *\"\{0,1\}\([^\",]*\(, [^\",]*\)*\)\"\{0,1\},\{0,1\}$/\1/p" "$1" | head -n 1; }
# about <key>: of --build-info
about() { sed -n "s/^$1: //p" "$logs/build_info.log"; }
# nvidia, amd, or emulated, also for a build for CPUs
vendor_of_build() {
  case "$(about cuda)|$(about hip)" in
    none\|*", for "*) echo amd ;;
    none\|*) echo emulated ;;
    *) echo nvidia ;;
  esac
}
# find_tool <name>: its path, in PATH or where the toolkits have it, or the images of NVIDIA
find_tool() {
  command -v "$1" && return
  local folder
  for folder in "${CUDA_HOME:-/usr/local/cuda}"/{bin,compute-sanitizer} "${ROCM_PATH:-/opt/rocm}/bin" /opt/nvidia/nsight-{systems,compute}/*{,/bin}; do
    if [ -x "$folder/$1" ]; then printf '%s\n' "$folder/$1"; return; fi
  done
  return 1
}

# find_gpu: what is asked of the GPU that rank 0 takes, by the vendor's tool, if it is there
find_gpu() {
  local first="${CUDA_VISIBLE_DEVICES:-0}"
  smi_name=nvidia-smi
  if [ "$vendor" = amd ]; then smi_name=rocm-smi first="${ROCR_VISIBLE_DEVICES:-0}"; fi
  smi="$(find_tool "$smi_name" || true)"
  query=("$smi" "--id=${first%%,*}" "--format=csv,noheader,nounits")
  if [ "$vendor" = amd ]; then query=("$smi" --device "${first%%,*}" --json); fi
}
# amd_value <key>: the number after this key, an expression for sed, in the JSON of one GPU that rocm-smi writes, from stdin
amd_value() { sed 's/[,{]/\n/g' | sed -n "s/^[^\"]*\"$1\": *\"[^0-9\"]*\([0-9.]*\).*/\1/p"; }
# memory_of_gpu: in MiB
memory_of_gpu() {
  local bytes
  if [ "$vendor" != amd ]; then "${query[@]}" --query-gpu=memory.total; return; fi
  bytes="$("${query[@]}" --showmeminfo vram | amd_value 'VRAM Total Memory (B)')"
  echo "${bytes:+$((bytes >> 20))}"
}
# sample_gpu: a line '<busy %>, <MHz>, <W>, <MiB>' five times a second, or as often as the tool answers
sample_gpu() {
  local says bytes
  if [ "$vendor" != amd ]; then exec "${query[@]}" --query-gpu=utilization.gpu,clocks.sm,power.draw,memory.used -lms 200; fi
  while says="$("${query[@]}" --showuse --showclocks --showpower --showmeminfo vram)"; do  # the power has another name in each version
    bytes="$(amd_value 'VRAM Total Used Memory (B)' <<<"$says")"
    printf '%s, %s, %s, %d\n' "$(amd_value 'GPU use (%)' <<<"$says")" "$(amd_value 'sclk clock speed:' <<<"$says")" \
      "$(amd_value '[A-Z][A-Za-z ]* Package Power (W)' <<<"$says")" "$((${bytes:-0} >> 20))"
    sleep 0.2
  done
}

# limited <seconds> <command>...: ended after so many, or when the minutes of the call are over; exit code 124 then
limited() {
  local seconds=$(($1 * slower)) left=$((deadline - SECONDS))
  shift
  if [ "$left" -le 0 ]; then return 124; fi
  timeout -k 5 "$((left < seconds ? left : seconds))" "$@" </dev/null
}

# watched <file> <command>...: samples of the GPU go to the file meanwhile
watched() {
  local file="$1" sampler="" code=0
  shift
  : >"$file"
  if [ -n "$smi" ]; then
    sample_gpu >"$file" 2>&1 &
    sampler=$!
  fi
  "$@" || code=$?
  if [ -n "$sampler" ]; then
    kill "$sampler" 2>/dev/null || true
    wait "$sampler" 2>/dev/null || true
  fi
  return "$code"
}

# beside <file of samples>: '<MHz> | <W> | <MiB>', means of the busy samples and the largest use of memory
beside() {
  awk -F ', *' '$1 ~ /^[0-9.]+$/ && $1 >= 90 { ++busy; mhz += $2; watts += $3 } $4 + 0 > peak { peak = $4 + 0 }
    END { printf "%s | %s | %s", busy ? sprintf("%.0f", mhz / busy) : "-", busy ? sprintf("%.0f", watts / busy) : "-", peak ? peak : "-" }' "$1"
}

# The head of every report: what was measured, where, with what.
head_of_report() {
  local gpu="none that $smi_name knows" dirty="" cudnn api libraries asked
  asked=("--query-gpu=name,memory.total,driver_version,clocks.max.sm,power.limit" "--format=csv,noheader")
  if [ "$vendor" = amd ]; then asked=(--showproductname --showdriverversion --csv); fi
  [ -z "$smi" ] || gpu="$("$smi" "${asked[@]}" 2>&1 | paste -sd ';' || true)"
  api="CUDA $(about cuda), driver for CUDA $(about cuda_driver)"
  libraries="NCCL $(about nccl), cuBLAS $(about cublas)"
  if [ -n "$(about hip)" ]; then
    api="HIP $(about hip), driver for HIP $(about hip_driver)" libraries="RCCL $(about rccl), rocBLAS $(about rocblas)"
  fi
  [ "$(about git_dirty)" = no ] || dirty=", with changes"
  say "# $what, $started"
  say ""
  say "| | |"
  say "|---|---|"
  say "| commit | $(about git_hash)$dirty, version $(about version) |"
  say "| GPU: name, memory, driver, clock and power at most | $gpu |"
  say "| host | $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1), $(getconf _NPROCESSORS_ONLN) cores, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo 2>/dev/null) |"
  say "| build | $(about build_type), $(about compiler), $api, Kokkos $(about kokkos), $(about mpi | sed 's/, package.*//') |"
  say "| libraries | $libraries |"
  cudnn="$(about cudnn)"
  case "$cudnn" in
    "") say "| attention in bf16 | $([ -z "$(about hip)" ] && echo 'cuDNN none: not a build for GPUs' || echo 'batched GEMMs') |" ;;
    none* | *"not found"*)
      failed=1
      say "| attention in bf16 | MISSING: cuDNN: $cudnn. The program's own kernels, which are slower |" ;;
    *) say "| attention in bf16 | cuDNN $cudnn |" ;;
  esac
  if [ -n "${NANOTRON_NOT_OPENED:-}" ]; then
    failed=1
    say "| not found | MISSING: $NANOTRON_NOT_OPENED |"
  fi
  say "| command | \`$command_line\` |"
}

# choose_decks: that of the largest model that the GPU's memory holds; fitting: all that it holds
choose_decks() {
  local deck total memory
  fitting=()
  if [ -z "$smi" ]; then
    [ "$what" = correctness ] || wrong "without $smi_name no deck can be chosen: name one with --deck"
    decks=("$root/tests/golden/llama/input.deck")
    return
  fi
  memory="$(memory_of_gpu 2>&1)" || true
  [[ "$memory" =~ ^[0-9]+$ ]] || wrong "$smi_name does not say the memory of the GPU, but '$memory': name a deck with --deck"
  for deck in "$root"/input/{qwen2_1b5,llama3_3b,llama_7b}.deck; do
    total="$("$bin/nanotron_hpc" --plan "$deck" | sed -n 's/^  total *\([0-9]*\).* MiB$/\1/p')"
    [ -n "$total" ] || wrong "nanotron_hpc --plan $deck says no total"
    # What CUDA, NCCL and the libraries take besides, as reserved_gb of input/machines.
    if [ $((total + 3815)) -le "$memory" ]; then fitting+=("$deck"); fi
  done
  [ ${#fitting[@]} -gt 0 ] || wrong "none of the decks fits $memory MiB: name a smaller one with --deck"
  decks=("${fitting[-1]}")
}

finish() {
  if [ -n "$out" ]; then
    cp "$report" "$logs/report.md"
    tar -czf "$logs.tar.gz" -C "${logs%/*}" "${logs##*/}"
    rm -r "$logs"
    printf '\nwritten: %s.md, all logs in %s.tar.gz\n' "$logs" "$logs"
  elif [ "$failed" != 0 ]; then
    printf '\nlogs of what failed:\n'
    tail -n 40 "$logs"/*.failed 2>/dev/null || true
  fi
  exit "$failed"
}
