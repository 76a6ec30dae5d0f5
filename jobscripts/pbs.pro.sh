#!/usr/bin/env bash
#PBS -N nanotron
#PBS -j oe
#PBS -r n
#PBS -l walltime=04:00:00
#
# CPU nodes: one rank per core. Give the cores of one of your nodes.
#PBS -l select=2:ncpus=64:mpiprocs=64
#
# GPU nodes: one rank per GPU, instead of the line above.
##PBS -l select=2:ncpus=64:mpiprocs=4:ngpus=4

# A training job for PBS Pro or OpenPBS that submits its successor until run%steps is reached (doc/job_scripts.md):
#
#   qsub -v DECK=input.deck jobscripts/pbs.pro.sh
#
# The program gets the time left (run%wall_time_limit) and stops with a checkpoint before it ends, since PBS leaves only
# a few seconds between SIGTERM and SIGKILL. touch <output_dir>/STOP ends the run with a checkpoint and without a
# successor.
#
# The outcome is read from STATUS_FILE, since mpiexec may return 0 after a failed launch. After a system failure (a lost
# rank, exit code 71) the job tries again, until MAX_FAILURES starts wrote no checkpoint or copy of a later step. A
# job that is lost with its first node submits nothing: submit it again with the same STATUS_FILE.
#
# If PBS does not answer for QSTAT_SECONDS, the job runs without a time limit: at the end of its time, the steps since
# the last checkpoint or copy may be lost. Its first SIGTERM is treated as that end, and the next job is submitted. If it
# came from your qdel, delete the next job too.
#
#   DECK           the deck, required; paths are relative to where qsub was called
#   OPTIONS        options of nanotron_hpc, separated by blanks
#   PROGRAM        the program (build/release/bin/nanotron_hpc, or that of the installation of JOB_SCRIPT)
#   JOB_SCRIPT     this file, to submit it again (jobscripts/pbs.pro.sh): PBS runs a copy without its name
#   SITE           settings of a machine, jobscripts/machines/<site>/<nodes>.sh (doc/job_scripts.md)
#   RANKS_PER_NODE if the node file names each node once, as with select=<nodes> alone
#   MPIEXEC_OPTIONS options of mpiexec, separated by blanks
#   SWEEP          file with one line per element of an array (qsub -J 1-<lines> -r y): <option>... or
#                  <deck> <option>...; element i writes into <SWEEP>.runs/i
#   SUBMIT_OPTIONS options of qsub, separated by blanks, for the next job: it does not inherit those of this one
#   WALLTIME       time limit of each job, seconds or [[H:]M:]S (default: from qstat)
#   QSTAT_SECONDS  how long qstat is repeated if PBS does not answer (60)
#   LAUNCH_SECONDS time that mpiexec takes to start all ranks (30), subtracted from the time left. The rest must exceed
#                  run%wall_time_margin (60 s), else exit code 78
#   STATUS_FILE    state of the run (nanotron-<number of the first job>.status in the folder of qsub)
#   RESTARTS       number of previous jobs (0); MAX_RESTARTS: give up there (1000)
#   MAX_FAILURES   give up after this many starts without a checkpoint or copy of a later step (3)
#   VERDICT_SECONDS how long the launcher may run after the verdict of a hang (60)
set -uo pipefail

cd "${PBS_O_WORKDIR:-.}" || exit 71
if [ -z "${DECK:-}" ]; then
  echo "usage: qsub -v DECK=input.deck jobscripts/pbs.pro.sh" >&2
  exit 78
fi
if [ -z "${PBS_JOBID:-}" ]; then
  echo "not a PBS job: submit it with qsub -v DECK=$DECK $0; without PBS: mpirun -np <ranks> nanotron_hpc $DECK" >&2
  exit 78
fi
script="${JOB_SCRIPT:-jobscripts/pbs.pro.sh}"
if [ ! -f "$script" ]; then
  echo "there is no $script to submit again: qsub -v DECK=$DECK,JOB_SCRIPT=<path of this script> ..." >&2
  exit 78
fi

# find_program <this script>: PROGRAM, else the one of the build here, of the installation or the source tree that the
# script lies in, or on the PATH
find_program() {
  local folder candidate
  folder="$(dirname "$1")"
  if [ -n "${PROGRAM:-}" ]; then echo "$PROGRAM" && return; fi
  for candidate in build/release/bin/nanotron_hpc "$folder/../../../bin/nanotron_hpc" \
    "$folder/../build/release/bin/nanotron_hpc"; do
    if [ -x "$candidate" ]; then echo "$candidate" && return; fi
  done
  command -v nanotron_hpc || {
    echo "there is no build/release/bin/nanotron_hpc here, none near $1 and none on the PATH: give PROGRAM" >&2
    return 1
  }
}

program="$(find_program "$script")" || exit 78
restarts="${RESTARTS:-0}"

# SITE has the settings of a machine (jobscripts/machines). Without it, the modules the program was built with belong
# here:
# module load gcc openmpi hdf5-parallel
if [ -n "${SITE:-}" ]; then
  set +u  # the scripts of modules may look at variables that are not set
  # shellcheck source=/dev/null
  if ! source "$SITE"; then echo "SITE=$SITE cannot be read, or a module of it is missing" >&2 && exit 78; fi
  set -u
fi

# A rank per core (or per GPU) with one thread.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export OPENBLAS_NUM_THREADS="$OMP_NUM_THREADS"

# seconds_of [[H:]M:]S; nothing for anything else
seconds_of() {
  [[ "$1" =~ ^([0-9]+:){0,2}[0-9]+$ ]] || return 0
  local seconds=0 field
  for field in ${1//:/ }; do seconds=$((seconds * 60 + 10#$field)); done
  echo "$seconds"
}

# ask_pbs <tries>: of_job gets what PBS knows of this job; fails where it does not answer
of_job=""
ask_pbs() {
  local try
  for ((try = 1; try <= $1; try++)); do
    if [ "$try" -gt 1 ]; then sleep $((${QSTAT_SECONDS:-60} / 6)); fi
    if of_job="$(qstat -f "$PBS_JOBID")"; then return; fi
  done
  return 1
}
value_of() { sed -n "s/^ *$1 = //p" <<<"$of_job" | head -n 1; }

# The end of the job by this shell's clock; empty: none, of a queue without a limit; unknown: PBS did not answer
end="" left="" limit=()
if [ -n "${WALLTIME:-}" ]; then
  left="$(seconds_of "$WALLTIME")"
  if [ -z "$left" ]; then echo "WALLTIME=$WALLTIME is neither seconds nor [[H:]M:]S" >&2 && exit 78; fi
  ask_pbs 1  # for the ledger
elif ask_pbs 7; then
  left="$(seconds_of "$(value_of 'Resource_List\.walltime')")"
else
  end=unknown
  echo "PBS does not answer: no limit of time, steps after the last checkpoint or copy may be lost; give WALLTIME" >&2
fi
if [ -n "$left" ]; then
  left=$((left - SECONDS))
  end=$((SECONDS + left - 5))
  # The program counts from its own start. 1, not 0, which would be no limit.
  left=$((left - ${LAUNCH_SECONDS:-30}))
  if [ "$left" -lt 1 ]; then left=1; fi
  # run%wall_time_margin (60 s unless the deck says more) has to hold one step and one checkpoint.
  limit=(--set "run.wall_time_limit=$left")
fi
# For the ledger of the run (doc/reliability.md), in seconds since 1970.
job_time() {
  local text
  text="$(value_of "$1")"
  if [ -n "$text" ]; then date -d "$text" +%s; fi
}
NANOTRON_SUBMIT_TIME="$(job_time qtime 2>/dev/null)"
NANOTRON_JOB_START_TIME="$(job_time stime 2>/dev/null)"
export NANOTRON_SUBMIT_TIME NANOTRON_JOB_START_TIME
echo "job $PBS_JOBID, restart $restarts: ${left:-no limit of} seconds left"

export STATUS_FILE="${STATUS_FILE:-$PWD/nanotron-${PBS_JOBID%%.*}.status}"
deck="$DECK"

#### the same in all job scripts
# status_of <key>: from STATUS_FILE, which the program keeps
status_of() { sed -n "s/^$1 = //p" "$STATUS_FILE" 2>/dev/null; }

# step_of <folder of a checkpoint or copy>: 110 for .../step_00000110; -1 without one
step_of() { if [[ "$1" =~ (^|/)step_0*([0-9]+)$ ]]; then echo "${BASH_REMATCH[2]}"; else echo -1; fi; }

# judge <how the start ended>: prints what to do next: finished, held (the file STOP), again, "again <failures>" if the start
# counts as a failure, or failed with a reason. $STATUS_FILE.failures stores the number of failures, the highest step of a
# checkpoint or copy so far, and that of the previous start (before). With s the step of the newest one now:
#   s > highest    resets the number of failures
#   s > before     does not change it: the chain catches up after lost copies or a damaged checkpoint
#   else           adds one
# Between two failures s only increases, at most to the highest step, which is at most run%steps. So each chain ends.
judge() {
  local how="$1" failures="" highest="" before="" now counted=""
  case "$(status_of state)" in
    finished | held)
      rm -f "$STATUS_FILE.failures"
      status_of state && return
      ;;
  esac
  case $how in
    "exit code 65" | "exit code 70" | "exit code 78")
      rm -f "$STATUS_FILE.failures"
      echo "failed: $how is not retried (README.md, exit codes)" && return
      ;;
  esac
  if [ -f "$STATUS_FILE.failures" ]; then
    { read -r failures; read -r highest; read -r before; } <"$STATUS_FILE.failures"
  fi
  [[ "$failures" =~ ^[0-9]+$ ]] || failures=0
  [[ "$highest" =~ ^[0-9]+$ ]] || highest=-1
  [[ "$before" =~ ^[0-9]+$ ]] || before=-1
  now="$(step_of "$(status_of checkpoint)")"
  if [ "$now" -gt "$highest" ]; then
    failures=0 highest="$now"
  elif [ "$now" -le "$before" ]; then
    failures=$((failures + 1))
    counted=" $failures"
  fi
  if [ "$failures" -ge "${MAX_FAILURES:-3}" ]; then
    rm -f "$STATUS_FILE.failures"
    echo "failed: $failures starts brought no checkpoint or copy of a later step (MAX_FAILURES), the last with $how"
    return
  fi
  if ! printf '%s\n' "$failures" "$highest" "$now" >"$STATUS_FILE.failures"; then
    echo "failed: $how, and the count of failures, $STATUS_FILE.failures, cannot be written" && return
  fi
  echo "again$counted"
}

# launch <command>...: runs the command. After the verdict of a hang the launcher may wait for hosts that do not answer until
# TCP gives up, a quarter of an hour. So it is killed VERDICT_SECONDS (60) after the verdict, with exit code 71.
launch() {
  local watcher code begin ended="$STATUS_FILE.ended"
  rm -f "$ended"
  begin="$(date +%s)"
  "$@" &
  launcher=$!
  (
    verdict_is_new() { [ "$(stat -c %Y "$(status_of output_dir)/hang/verdict.txt" 2>/dev/null || echo 0)" -ge "$begin" ]; }
    rest() { sleep "$1" >/dev/null 2>&1; }
    until verdict_is_new; do rest 5; done
    rest "${VERDICT_SECONDS:-60}"
    if ! kill -0 "$launcher" 2>/dev/null; then exit; fi
    touch "$ended"
    kill -TERM "$launcher" 2>/dev/null
    echo "the launcher still runs after the verdict of a hang: killed" >&2
    rest 10
    kill -KILL "$launcher" 2>/dev/null
  ) &
  watcher=$!
  wait "$launcher"
  while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; done  # a signal ends a wait
  wait "$launcher"
  code=$?
  kill "$watcher" 2>/dev/null  # a sleep of it is left, which holds nothing
  wait "$watcher" 2>/dev/null
  if [ -f "$ended" ]; then code=71; fi
  rm -f "$ended"
  return "$code"
}

# An element of an array takes its line of SWEEP, [<deck>] <option>..., and runs in its own folder.
sweep=()
if [ -n "${SWEEP:-}" ]; then
  export ELEMENT="${ELEMENT:-${SLURM_ARRAY_TASK_ID:-${PBS_ARRAY_INDEX:-${PJM_BULKNUM:-}}}}"
  if [[ "$ELEMENT" =~ ^[1-9][0-9]*$ ]]; then read -r -a sweep <<<"$(sed -n "${ELEMENT}p" "$SWEEP")"; fi
  if [ ${#sweep[@]} -eq 0 ]; then echo "SWEEP=$SWEEP has no line '$ELEMENT'" >&2 && exit 78; fi
  if [[ "${sweep[0]}" != -* ]]; then deck="${sweep[0]}" sweep=("${sweep[@]:1}"); fi
  folder="$SWEEP.runs/$ELEMENT"
  mkdir -p "$folder" || exit 78
  sweep=(--set "run.output_dir=$folder" ${sweep[@]+"${sweep[@]}"})
  export STATUS_FILE="$folder/job.status"
fi

if ! touch "$STATUS_FILE" "$STATUS_FILE.failures"; then
  echo "$STATUS_FILE cannot be written: give STATUS_FILE on a file system that all nodes share" >&2
  exit 78
fi
state="$(status_of state)"
# Left by a start that was lost with its node and has not been judged.
case $state in launching | starting | running | failed) lost=yes ;; *) lost=no ;; esac
if [ "$state" = finished ]; then : >"$STATUS_FILE"; fi
if [ ! -s "$STATUS_FILE" ]; then : >"$STATUS_FILE.failures"; fi  # a new chain, which may begin at an earlier step
####

if [ "$lost" = yes ]; then
  verdict="$(judge "a lost node or job script")"
  if [[ "$verdict" != again* ]]; then echo "$verdict: not started" >&2 && exit 71; fi
fi
sed -i 's/^state = .*/state = launching/' "$STATUS_FILE"
grep -q '^state = ' "$STATUS_FILE" || { [ $? -eq 1 ] || exit 71; echo "state = launching" >>"$STATUS_FILE"; }  # 2: it cannot be read

# follow: submits the next job, once. It is held until this one has ended, so that two jobs never write into one run directory.
next=""
follow() {
  if [ -n "$next" ]; then return; fi
  export RESTARTS=$((restarts + 1))
  # Nothing can depend on one element of an array: two minutes are enough for it to end.
  local after=(-W depend=afterany:"$PBS_JOBID")
  if [[ "$PBS_JOBID" = *\[* ]]; then after=(-a "$(date -d '2 minutes' +%Y%m%d%H%M.%S)"); fi
  # shellcheck disable=SC2086  # SUBMIT_OPTIONS is a list
  if ! next="$(qsub "${after[@]}" ${SUBMIT_OPTIONS:-} -V "$script")"; then
    next=""
    echo "qsub failed: NO JOB FOLLOWS, submit it again with STATUS_FILE=$STATUS_FILE" >&2 && return
  fi
  next="${next:-submitted}"
  echo "the next job: $next"
}

# Signals to this shell (qsig, or the end of the job) ask the program to stop; mpiexec forwards them. Then the job is judged
# as usual. PBS sends SIGTERM at the end of the time, where another job follows, and when somebody deletes the job. SIGKILL
# comes soon after, perhaps before anything is judged.
launcher="" terminated=""
trap 'if [ -n "$launcher" ]; then kill -USR1 "$launcher" 2>/dev/null; fi' USR1 USR2
trap 'terminated=yes
  if [ -n "$launcher" ]; then kill -USR1 "$launcher" 2>/dev/null; fi
  if [ "$end" = unknown ] && [ "$restarts" -lt "${MAX_RESTARTS:-1000}" ]; then follow; fi' TERM

ranks="$(wc -l < "$PBS_NODEFILE")"
if [ -n "${RANKS_PER_NODE:-}" ]; then ranks=$(($(sort -u "$PBS_NODEFILE" | wc -l) * RANKS_PER_NODE)); fi
# shellcheck disable=SC2086  # MPIEXEC_OPTIONS and OPTIONS are lists
launch mpiexec -n "$ranks" --hostfile "$PBS_NODEFILE" ${MPIEXEC_OPTIONS:-} \
  "$program" --status "$STATUS_FILE" ${limit[@]+"${limit[@]}"} ${sweep[@]+"${sweep[@]}"} ${OPTIONS:-} "$deck"
code=$?

state="$(status_of state)"
verdict="$(judge "exit code $code")"
case $verdict in again* | failed*) sed -i 's/^state = .*/state = judged/' "$STATUS_FILE" ;; esac
if [[ "$verdict" != again* ]] && [ -n "$next" ]; then qdel "$next"; fi
case $verdict in
  finished) echo "finished" && exit 0 ;;
  held) echo "stopped by the file STOP: no job follows; to continue: qsub -v STATUS_FILE=$STATUS_FILE,..." && exit "$code" ;;
  again*)
    if [ "$restarts" -ge "${MAX_RESTARTS:-1000}" ]; then
      echo "exit code $code after $restarts restarts: not submitted again (MAX_RESTARTS)" >&2
    elif [ -n "$terminated" ] && [ "$end" != unknown ] && { [ -z "$end" ] || [ "$SECONDS" -lt "$end" ]; }; then
      echo "exit code $code: PBS ends this job before its time, no other one is submitted" >&2
    else
      echo "exit code $code, state $state: submitting the next job"
      follow
    fi
    ;;
  *) echo "$verdict: not submitted again" >&2 ;;
esac
if [ "$code" -eq 0 ]; then code=71; fi  # not finished, whatever the launcher says
exit "$code"
