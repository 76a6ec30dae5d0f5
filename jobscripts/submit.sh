#!/usr/bin/env bash
# Checks a deck on the login node, with the modules of a machine, and submits the job script with its directives.
#
#   jobscripts/submit.sh jobscripts/machines/<site>/<nodes>.sh [<option of sbatch, qsub or pjsub>...] -- \
#     input.deck [<option of nanotron_hpc>...]
#
# Give your account: --account=<project> for sbatch, -A <project> for qsub, -g <group> for pjsub. Your options follow those
# of the machine: sbatch uses the last of two. For qsub and pjsub, the machine file names the variables that change its options.
#
#   PROGRAM   the program (build/release/bin/nanotron_hpc, or that of the installation of this script)
#   CHECK_PROGRAM  nanotron_hpc for the check, if the login node cannot run PROGRAM, another processor's (PROGRAM)
#   SWEEP     file with one line per element of an array, [<deck>] <option>...; each one is checked
#
# Exit code: that of the check (78: wrong deck), or of sbatch, qsub or pjsub.
set -euo pipefail

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
usage_error() {
  echo "submit: $1" >&2
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 78
}

if [ $# -lt 1 ] || [ ! -r "$1" ]; then usage_error "'${1:-}' is not a file of jobscripts/machines"; fi
SITE="$(realpath "$1")"
export SITE
shift
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in --array* | -J | --bulk | --step) usage_error "an array comes from SWEEP, --step from this script" ;; esac
  options+=("$1") && shift
done
if [ $# -lt 2 ]; then usage_error "no deck after --"; fi
deck="$2"
shift 2

submit=sbatch site_options=()  # as the file of the machine says
set +u  # the scripts of modules may look at variables that are not set
# shellcheck source=/dev/null
source "$SITE" || usage_error "$SITE cannot be read, or a module of it is missing"
set -u

program="${PROGRAM:-}"
for candidate in build/release/bin/nanotron_hpc "$scripts/../../../bin/nanotron_hpc" \
  "$scripts/../build/release/bin/nanotron_hpc" "$(command -v nanotron_hpc || true)"; do
  if [ -z "$program" ] && [ -x "$candidate" ]; then program="$(realpath "$candidate")"; fi
done
if [ -z "$program" ]; then usage_error "there is no nanotron_hpc: give PROGRAM"; fi
export PROGRAM="$program"
checker="${CHECK_PROGRAM:-$program}"

array=()
if [ -n "${SWEEP:-}" ]; then
  export SWEEP
  lines=0
  while read -r -a line; do
    lines=$((lines + 1)) checked="$deck"
    if [ ${#line[@]} -eq 0 ]; then usage_error "line $lines of $SWEEP is empty"; fi
    if [[ "${line[0]}" != -* ]]; then checked="${line[0]}" line=("${line[@]:1}"); fi
    "$checker" --check ${line[@]+"${line[@]}"} "$@" "$checked" </dev/null
  done <"$SWEEP"
  if [ "$lines" -eq 0 ]; then usage_error "$SWEEP is empty"; fi
  case $submit in
    qsub) array=(-J "1-$lines" -r y) ;;
    pjsub) array=(--bulk --sparam "1-$lines") ;;
    *) array=(--array="1-$lines") ;;
  esac
else
  "$checker" --check "$@" "$deck"
fi

options=(${site_options[@]+"${site_options[@]}"} ${options[@]+"${options[@]}"})
export SUBMIT_OPTIONS="${options[*]}"  # the job gives them to the one that follows it
if [ "$submit" = qsub ]; then
  export DECK="$deck" OPTIONS="$*" JOB_SCRIPT="$scripts/pbs.pro.sh"
  exec qsub ${options[@]+"${options[@]}"} ${array[@]+"${array[@]}"} -V "$JOB_SCRIPT"
fi
if [ "$submit" = pjsub ]; then
  # Each variable by its name: values may have commas, and the login node may be of another processor than the others.
  export DECK="$deck" OPTIONS="$*" JOB_SCRIPT="$scripts/pjm.sh"
  given=()
  for name in DECK OPTIONS JOB_SCRIPT PROGRAM SITE SUBMIT_OPTIONS SWEEP WALLTIME PJSTAT_SECONDS LAUNCH_SECONDS STATUS_FILE \
    MAX_RESTARTS MAX_FAILURES VERDICT_SECONDS; do
    if [ -n "${!name+set}" ]; then given+=(-x "$name"); fi
  done
  if [ -z "${SWEEP:-}" ]; then array=(--step); fi
  exec pjsub ${options[@]+"${options[@]}"} "${array[@]}" "${given[@]}" "$JOB_SCRIPT"
fi
exec sbatch ${options[@]+"${options[@]}"} ${array[@]+"${array[@]}"} "$scripts/slurm.sh" "$deck" "$@"
