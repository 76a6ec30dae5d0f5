# shellcheck shell=bash disable=SC2034,SC2154,SC2317  # it shares its variables with tests/gpu.sh; by_<tool> are called by their names
# Sourced by tests/gpu.sh: where does the time go?

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
  bench 300 "$1" "$2_nsys" "${steps:-2}" &&
    "$nsys" stats --force-export=true --report cuda_gpu_kern_sum --format csv --output - "$logs/$2.nsys-rep" >"$logs/$2.csv" 2>"$logs/$2_stats.log" &&
    awk -F , -v OFS='\t' '/^[0-9.]+,[0-9]+,/ { name = $9; for (i = 10; i <= NF; ++i) name = name "," $i
      gsub(/"/, "", name); print $1, $2 / 1e9, $3, name }' "$logs/$2.csv" >"$logs/$2.rows" && [ -s "$logs/$2.rows" ]
}

by_ncu() {  # <deck> <name>: time of each launch, one counter, so one pass
  local ncu wrapper
  ncu="$(find_tool ncu)" || return 1
  wrapper=("$ncu" --clock-control none --target-processes all --metrics gpu__time_duration.sum --csv --page raw
    --print-units base --log-file "$logs/$2.csv")
  bench 300 "$1" "$2_ncu" 1 &&
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
  bench 200 "$1" "$2" "${steps:-2}" &&
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
