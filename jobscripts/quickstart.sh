#!/usr/bin/env bash
# From a fresh clone to a trained model on one machine with two or more cores: installs missing packages,
# builds, makes a token file from text of this machine, trains on a tensor-parallel grid, resumes on a
# data-parallel grid, prints a sample and plots the loss.
#
#   jobscripts/quickstart.sh [--help] [<folder of text>]
#
#   <folder of text>   instead of the C and C++ headers under /usr/include
#
# All results are in runs/quickstart. A second call continues from there.
# Exit codes are those of the programs (README.md).
set -euo pipefail

usage() { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  -*) echo "quickstart: unknown option '$1'" >&2; usage >&2; exit 64 ;;
esac
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
text="${1:-/usr/include}"
[ ! -d "$text" ] || text="$(cd "$text" && pwd)"
cd "$root"
run=runs/quickstart
began=$SECONDS

say() { printf '\n=== quickstart, %d s: %s\n' "$((SECONDS - began))" "$*"; }

if [ ! -d "$text" ]; then
  echo "quickstart: '$text' is not a folder: give a folder of text files" >&2
  exit 65
fi

say "install dependencies"
jobscripts/install_dependencies.sh
# shellcheck source=environment.sh
source jobscripts/environment.sh

say "build (build/release)"
cmake --preset release -DNANOTRON_BUILD_TESTS=OFF -DNANOTRON_UNITY=ON > build/configure.log 2>&1 ||
  { cat build/configure.log; exit 71; }
cmake --build --preset release --target nanotron_hpc nanotron_generate
bin="$root/build/release/bin"
mpirun="${MPIEXEC:-mpirun} -np 2"

say "tokenize $text"
mkdir -p "$run"
if [ "$(cat "$run/text.from" 2> /dev/null)" != "$text" ]; then
  patterns=(--glob '*')
  [ "$text" != /usr/include ] || patterns=(--glob '*.h' --glob '*.hpp')
  "$NANOTRON_PYTHON" tools/nanotron_tokenize.py "$text" "${patterns[@]}" \
    --max-bytes 40000000 --shuffle-seed 1 --output "$run/tokens.h5"
  rm -rf "$run/checkpoints" "$run/metrics.h5"
  echo "$text" > "$run/text.from"
fi

say "train with tensor parallelism on 2 ranks (input/quickstart.deck)"
$mpirun "$bin/nanotron_hpc" input/quickstart.deck

say "resume on another grid: tp = 1, dp = 2"
$mpirun "$bin/nanotron_hpc" --set parallel.tp=1 --set parallel.dp=2 --set run.steps=300 \
  input/quickstart.deck

say "generate a sample"
$mpirun "$bin/nanotron_generate" --checkpoint "$run/checkpoints" --tokens-file "$run/tokens.h5" \
  --prompt '#include <' --max-new-tokens 240 --temperature 0.7 --seed 1 | tee "$run/sample.txt"

say "plot"
"$NANOTRON_PYTHON" tools/nanotron_plot.py "$run" --token-file "$run/tokens.h5" -o "$run/loss.png"
"$NANOTRON_PYTHON" tools/nanotron_ls.py "$run"

say "done"
"$NANOTRON_PYTHON" - "$run" << 'PYTHON'
import sys
import h5py
run = sys.argv[1]
with h5py.File(f"{run}/metrics.h5") as m, h5py.File(f"{run}/tokens.h5") as t:
    first, last = float(m["loss"][0]), float(m["loss"][-20:].mean())
    validation = float(m["validation_loss"][-1])
    entropy = float(t.attrs["unigram_entropy"])
print(f"loss: {first:.3f} at the first step, {last:.3f} over the last 20, {validation:.3f} on held-out text")
print(f"unigram entropy of the data: {entropy:.3f} nats per token (the best loss without context)")
print(f"curve: {run}/loss.png   sample: {run}/sample.txt   numbers: {run}/metrics.h5   log: {run}/run.log")
if not last < 0.8 * entropy:
    sys.exit("quickstart: the loss is not below 0.8 times the unigram entropy")
PYTHON
