#!/usr/bin/env bash
#PJM --name nanotron
#PJM -j
#PJM -L node=2
#PJM -L elapse=04:00:00
#PJM --mpi proc=8
#
# Lines that most sites ask for. Fill them in and remove the first "# ", or give them to pjsub:
# #PJM -L rscgrp=small
# #PJM -g <group>
# #PJM -x PJM_LLIO_GFSCACHE=/vol0004

# A training job for PJM, the scheduler of Fujitsu's Technical Computing Suite, that submits its successor until run%steps
# is reached (doc/job_scripts.md):
#
#   pjsub --step -x DECK=input.deck jobscripts/pjm.sh
#
# NEVER RUN UNDER PJM: written from documents. Sources, in [] below, and what was not found: at the end of this file.
#
# The next job is the next step of the same step job: PJM starts it when this one has ended [1]. Without --step it is a job
# of its own, submitted when the program has ended. touch <output_dir>/STOP ends the run with a checkpoint and without a
# successor. The program gets the time left (run%wall_time_limit) and stops with a checkpoint before it ends.
#
# The outcome is read from STATUS_FILE. After a system failure (a lost rank, exit code 71) the job tries again, until
# MAX_FAILURES starts wrote no checkpoint or copy of a later step. A job that is lost with its first node submits nothing:
# submit it again with the same STATUS_FILE. If PJM runs a lost job again itself, that start is judged too.
#
# If compute nodes of your site cannot call pjsub, submit the steps beforehand. One that finds the run finished, held or
# failed for good ends at once:
#
#   pjsub --step -x DECK=input.deck -x MAX_RESTARTS=0 jobscripts/pjm.sh                     # it prints the job, say 64856_0
#   pjsub --step --sparam jid=64856 -x DECK=input.deck -x MAX_RESTARTS=0 jobscripts/pjm.sh  # as often as needed
#
# If pjstat does not answer for PJSTAT_SECONDS, the job runs without a time limit: at the end of its time, the steps since
# the last checkpoint or copy may be lost. Its first SIGTERM is treated as that end, and the next job is submitted. If it
# came from your pjdel, delete the next job too.
#
#   DECK           the deck, required; paths are relative to where pjsub was called
#   OPTIONS        options of nanotron_hpc, separated by blanks
#   PROGRAM        the program (build/release/bin/nanotron_hpc, or that of the installation of JOB_SCRIPT)
#   JOB_SCRIPT     this file, to submit it again (jobscripts/pjm.sh)
#   SITE           settings of a machine, jobscripts/machines/<site>/<nodes>.sh (doc/job_scripts.md)
#   RANKS_PER_NODE ranks on each node, if not as --mpi proc says
#   MPIEXEC_OPTIONS options of mpiexec, separated by blanks. Fujitsu's mpiexec writes the output of rank r of the n-th
#                  mpiexec to output.<job>/<r in thousands>/<n>/stdout.<n>.<r>; -std-proc <name> gives another name [2]
#   SWEEP          file with one line per element of a bulk job (pjsub --bulk --sparam 1-<lines>): <option>... or
#                  <deck> <option>...; element i writes into <SWEEP>.runs/i
#   SUBMIT_OPTIONS options of pjsub, separated by blanks, for the next job: it does not inherit those of this one
#   WALLTIME       time limit of each job, seconds or [[H:]M:]S (default: from pjstat)
#   PJSTAT_SECONDS how long pjstat is repeated if PJM does not answer (60)
#   LAUNCH_SECONDS time that mpiexec takes to start all ranks (30), subtracted from the time left. The rest must exceed
#                  run%wall_time_margin (60 s), else exit code 78
#   STATUS_FILE    state of the run (nanotron-<number of the first job>.status in the folder of pjsub)
#   RESTARTS       number of previous jobs (0); MAX_RESTARTS: give up there (1000)
#   MAX_FAILURES   give up after this many starts without a checkpoint or copy of a later step (3)
#   VERDICT_SECONDS how long the launcher may run after the verdict of a hang (60)
#
# The next job gets those of these variables that this one was submitted with, and OMP_NUM_THREADS. For others, add
# "-x NAME" to SUBMIT_OPTIONS.
set -uo pipefail

cd "${PJM_O_WORKDIR:-.}" || exit 71
if [ -z "${DECK:-}" ]; then
  echo "usage: pjsub --step -x DECK=input.deck jobscripts/pjm.sh" >&2
  exit 78
fi
if [ -z "${PJM_JOBID:-}" ]; then
  echo "not a PJM job: submit it with pjsub --step -x DECK=$DECK $0; without PJM: mpirun -np <ranks> nanotron_hpc $DECK" >&2
  exit 78
fi
script="${JOB_SCRIPT:-jobscripts/pjm.sh}"
if [ ! -f "$script" ]; then
  echo "there is no $script to submit again: pjsub --step -x DECK=$DECK -x JOB_SCRIPT=<path of this script> ..." >&2
  exit 78
fi

# What the next job gets. SITE sets others in this shell, and sets them again in the next job.
given=()
for name in DECK OPTIONS PROGRAM JOB_SCRIPT SITE RANKS_PER_NODE MPIEXEC_OPTIONS SWEEP SUBMIT_OPTIONS WALLTIME PJSTAT_SECONDS \
  LAUNCH_SECONDS MAX_RESTARTS MAX_FAILURES VERDICT_SECONDS OMP_NUM_THREADS; do
  if [ -n "${!name+set}" ]; then given+=(-x "$name"); fi
done

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
# module load lang/tcsds-<version>
if [ -n "${SITE:-}" ]; then
  set +u  # the scripts of modules may look at variables that are not set
  # shellcheck source=/dev/null
  if ! source "$SITE"; then echo "SITE=$SITE cannot be read, or a module of it is missing" >&2 && exit 78; fi
  set -u
fi

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export OPENBLAS_NUM_THREADS="$OMP_NUM_THREADS"
export PLE_MPI_STD_EMPTYFILE="${PLE_MPI_STD_EMPTYFILE:-off}"  # no files of ranks that print nothing [3]

# seconds_of [[H:]M:]S; nothing for anything else
seconds_of() {
  [[ "$1" =~ ^([0-9]+:){0,2}[0-9]+$ ]] || return 0
  local seconds=0 field
  for field in ${1//:/ }; do seconds=$((seconds * 60 + 10#$field)); done
  echo "$seconds"
}

# ask_pjm <tries>: of_job gets what PJM knows of this job; fails where it does not answer
of_job="" job="${PJM_SUBJOBID:-$PJM_JOBID}"
ask_pjm() {
  local try
  for ((try = 1; try <= $1; try++)); do
    if [ "$try" -gt 1 ]; then sleep $((${PJSTAT_SECONDS:-60} / 6)); fi
    if of_job="$(pjstat -s "$job")" && [ -n "$of_job" ]; then return; fi
  done
  return 1
}
value_of() { sed -n "s/^ *$1 *: *//p" <<<"$of_job" | head -n 1; }  # of pjstat -s [4]
seconds_in() { sed -n 's/.*(\([0-9]*\)).*/\1/p' <<<"$1"; }          # 7200 of 02:00:00 (7200)
# limit_in_list: the column ELAPSE_LIM of pjstat, hours of four digits [5]
limit_in_list() {
  pjstat "$job" | awk -v job="$job" '$1 == job { for (i = 2; i <= NF; i++) if ($i ~ /^[0-9][0-9][0-9][0-9]+:[0-9][0-9]:[0-9][0-9]$/) print $i }'
}

# The end of the job by this shell's clock; empty: none, of a job without a limit; unknown: PJM did not answer
end="" left="" limit=()
if [ -n "${WALLTIME:-}" ]; then
  left="$(seconds_of "$WALLTIME")"
  if [ -z "$left" ]; then echo "WALLTIME=$WALLTIME is neither seconds nor [[H:]M:]S" >&2 && exit 78; fi
  ask_pjm 1  # for the ledger
elif ask_pjm 7; then
  left="$(seconds_in "$(value_of 'ELAPSE TIME (LIMIT)')")"
  if [ -z "$left" ]; then left="$(seconds_of "$(limit_in_list)")"; fi
else
  end=unknown
  echo "PJM does not answer: no limit of time, steps after the last checkpoint or copy may be lost; give WALLTIME" >&2
fi
if [ -n "$left" ]; then
  used="$(seconds_in "$(value_of 'ELAPSE TIME (USE)')")"
  if [ "${used:-0}" -lt "$SECONDS" ]; then used="$SECONDS"; fi
  left=$((left - used))
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
  if [ -n "$text" ]; then date -d "${text//[<>()]/}" +%s; fi
}
NANOTRON_SUBMIT_TIME="$(job_time 'ACCEPT DATE' 2>/dev/null)"
NANOTRON_JOB_START_TIME="$(job_time 'JOB START DATE' 2>/dev/null)"
export NANOTRON_SUBMIT_TIME NANOTRON_JOB_START_TIME
echo "job $job, restart $restarts: ${left:-no limit of} seconds left"

export STATUS_FILE="${STATUS_FILE:-$PWD/nanotron-${PJM_JOBID%%[_[]*}.status}"
deck="$DECK"

# A step that was submitted beforehand has nothing to do once an earlier one has ended the run.
if [ "${PJM_STEPNUM:-0}" != 0 ] && grep -Eqs '^state = (finished|held|ended)$' "$STATUS_FILE"; then
  echo "an earlier step has ended the run ($STATUS_FILE): nothing to do" && exit 0
fi

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
  if [[ "$verdict" != again* ]]; then
    echo "$verdict: not started" >&2
    sed -i 's/^state = .*/state = ended/' "$STATUS_FILE"
    exit 71
  fi
fi
sed -i 's/^state = .*/state = launching/' "$STATUS_FILE"
grep -q '^state = ' "$STATUS_FILE" || { [ $? -eq 1 ] || exit 71; echo "state = launching" >>"$STATUS_FILE"; }  # 2: it cannot be read

# follow: submits the next job, once: of a step job its next step [1], else a job of its own.
next=""
follow() {
  if [ -n "$next" ]; then return; fi
  export RESTARTS=$((restarts + 1))
  local values=(${given[@]+"${given[@]}"} -x RESTARTS -x STATUS_FILE)
  if [ -n "${ELEMENT:-}" ]; then values+=(-x ELEMENT); fi
  # shellcheck disable=SC2086  # SUBMIT_OPTIONS is a list
  if [ -z "${PJM_STEPNUM:-}" ] ||
    ! next="$(pjsub -z jid --step --sparam "jid=${PJM_JOBID%%_*}" ${SUBMIT_OPTIONS:-} "${values[@]}" "$script")"; then
    if ! next="$(pjsub -z jid ${SUBMIT_OPTIONS:-} "${values[@]}" "$script")"; then
      next=""
      echo "pjsub failed: NO JOB FOLLOWS, submit it again with STATUS_FILE=$STATUS_FILE" >&2 && return
    fi
  fi
  next="${next:-submitted}"
  echo "the next job: $next"
}

# Signals to this shell ask the program to stop, if mpiexec forwards SIGUSR1; then the job is judged as usual. SIGTERM may be
# the end of the time, where another job follows, or somebody's pjdel. SIGKILL may come soon after.
launcher="" terminated=""
trap 'if [ -n "$launcher" ]; then kill -USR1 "$launcher" 2>/dev/null; fi' USR1 USR2
trap 'terminated=yes
  if [ -n "$launcher" ]; then kill -USR1 "$launcher" 2>/dev/null; fi
  if [ "$end" = unknown ] && [ "$restarts" -lt "${MAX_RESTARTS:-1000}" ]; then follow; fi' TERM

ranks=()
if [ -n "${PJM_MPI_PROC:-}" ]; then ranks=(-n "$PJM_MPI_PROC"); fi
if [ -n "${RANKS_PER_NODE:-}" ] && [ -n "${PJM_NODE:-}" ]; then ranks=(-n $((PJM_NODE * RANKS_PER_NODE))); fi
# shellcheck disable=SC2086  # MPIEXEC_OPTIONS and OPTIONS are lists
launch mpiexec ${ranks[@]+"${ranks[@]}"} ${MPIEXEC_OPTIONS:-} \
  "$program" --status "$STATUS_FILE" ${limit[@]+"${limit[@]}"} ${sweep[@]+"${sweep[@]}"} ${OPTIONS:-} "$deck"
code=$?

state="$(status_of state)"
verdict="$(judge "exit code $code")"
case $verdict in
  again*) sed -i 's/^state = .*/state = judged/' "$STATUS_FILE" ;;
  failed*) sed -i 's/^state = .*/state = ended/' "$STATUS_FILE" ;;
esac
if [[ "$verdict" != again* ]] && [ -n "$next" ]; then pjdel "$next"; fi
case $verdict in
  finished) echo "finished" && exit 0 ;;
  held) echo "stopped by the file STOP: no job follows; to continue: pjsub --step -x STATUS_FILE=$STATUS_FILE ..." && exit "$code" ;;
  again*)
    if [ "$restarts" -ge "${MAX_RESTARTS:-1000}" ]; then
      echo "exit code $code after $restarts restarts: not submitted again (MAX_RESTARTS)" >&2
    elif [ -n "$terminated" ] && [ "$end" != unknown ] && { [ -z "$end" ] || [ "$SECONDS" -lt "$end" ]; }; then
      echo "exit code $code: PJM ends this job before its time, no other one is submitted" >&2
    else
      echo "exit code $code, state $state: submitting the next job"
      follow
    fi
    ;;
  *) echo "$verdict: not submitted again" >&2 ;;
esac
if [ "$code" -eq 0 ]; then code=71; fi  # not finished, whatever the launcher says
exit "$code"

# Sources, read on 2026-11-26 in stored copies that may be older; RIKEN is https://www.r-ccs.riken.jp/fugaku/docs/user-guide/
# sys-use/user-guide-use-1.49/build/en:
#   [1] RIKEN/JobExecution/StepJob.html: --step, --sparam jid=; steps run in the order of submission, each when the one
#       before has ended; a step can be added while one of the job is left. BulkJob.html: --bulk --sparam, PJM_BULKNUM;
#       elements are <job>[<number>] (DisplayingJobStatus.html)
#   [2] RIKEN/MPI/InputOutputRedirection.html: -std-proc, -stdout-proc, -stderr-proc and the default names
#   [3] job scripts of users of GENESIS, such as https://github.com/matsunagalab/md_inputs; theirs is --mpi proc too
#   [4] public programs that read pjstat -s: "ELAPSE TIME (LIMIT) : 02:00:00 (7200)", "ACCEPT DATE : 2016/07/29 20:55:56"
#   [5] RIKEN/JobExecution/DisplayingJobStatus.html: ELAPSE_LIM is 0001:00:00
# PJM_O_WORKDIR, PJM_JOBID, PJM_SUBJOBID, PJM_STEPNUM, PJM_NODE and PJM_MPI_PROC, -x NAME for the value of this shell, and
# -z jid, which prints the number alone, are from public job scripts and programs of users.
# Not found: whether compute nodes can call pjsub and pjstat; which signals a job gets at its limit or from pjdel, and how
# long before SIGKILL; whether mpiexec forwards SIGUSR1; options that exclude hosts.
