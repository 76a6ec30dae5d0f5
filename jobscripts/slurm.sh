#!/usr/bin/env bash
#SBATCH --job-name=nanotron
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#
# CPU nodes: one rank per core. Give the cores of one of your nodes.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=64
#SBATCH --cpus-per-task=1
#SBATCH --threads-per-core=1
#
# GPU nodes: one rank per GPU, instead of the four lines above.
##SBATCH --nodes=2
##SBATCH --ntasks-per-node=4
##SBATCH --gpus-per-node=4
##SBATCH --cpus-per-task=16

# A training job that requeues itself until run%steps is reached (doc/job_scripts.md):
#
#   sbatch jobscripts/slurm.sh input.deck [<option of nanotron_hpc>...]
#
# touch <output_dir>/STOP ends it with a checkpoint. Before the time limit it writes a checkpoint and requeues itself:
# Slurm sends the program SIGUSR1 300 s before the limit, and the program knows the time left (run%wall_time_limit). If
# a step and a checkpoint take longer than 300 s, increase --signal. Without "B:" the signal goes to the steps of srun,
# as it should.
#
# The outcome is read from STATUS_FILE, since srun may return 0 after a failed launch. After a system failure (a lost
# node or rank, exit code 71) the job tries again, until MAX_FAILURES starts wrote no checkpoint or copy of a later
# step. After two failures it uses other nodes, if the partition has as many. Hosts in <output_dir>/excluded_hosts
# (doc/reliability.md) are excluded in addition to your --exclude. Remove a repaired host from the file.
#
#   PROGRAM        the program (build/release/bin/nanotron_hpc, or that of the installation of this script)
#   SITE           settings of a machine, jobscripts/machines/<site>/<nodes>.sh (doc/job_scripts.md)
#   MPI_TYPE       value of srun --mpi (pmix; srun --mpi=list shows others); "default" omits the option
#   CPU_BIND       value of srun --cpu-bind (cores)
#   SWEEP          file with one line per element of an array (sbatch --array=1-<lines>): <option>... or
#                  <deck> <option>...; element i writes into <SWEEP>.runs/i
#   MAX_RESTARTS   give up after this many restarts (1000)
#   MAX_FAILURES   give up after this many starts without a checkpoint or copy of a later step (3)
#   VERDICT_SECONDS how long the launcher may run after the verdict of a hang (60)
#   STATUS_FILE    state of the run (nanotron-<job>.status in the folder of sbatch)
#   REQUEUE        no: submit a new dependent job instead of scontrol requeue. It avoids the two minutes for which
#                  Slurm holds a requeued job, but has a new job number and no age priority
#   SUBMIT_OPTIONS options of sbatch for the next job, if it is a new one
#   LAUNCH_SECONDS time that srun takes to start all ranks (30), subtracted from the time left. The rest must exceed
#                  run%wall_time_margin (60 s), else exit code 78
set -uo pipefail

if [ $# -lt 1 ]; then
  echo "usage: sbatch jobscripts/slurm.sh input.deck [<option of nanotron_hpc>...]" >&2
  exit 78
fi
if [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "not a Slurm job: submit it with sbatch $0 $*; without Slurm: mpirun -np <ranks> nanotron_hpc $*" >&2
  exit 78
fi
# In a job, Slurm has copied this script elsewhere: the job begins where sbatch was called.
cd "${SLURM_SUBMIT_DIR:-.}" || exit 71

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

# Of one element of an array SLURM_JOB_ID is the number of the whole array.
job="$SLURM_JOB_ID"
if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"; fi

# shown <key>: a value without blanks of scontrol show job
shown() { scontrol show job "$job" | sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" | head -n 1; }

# The script and its arguments are separated by blanks, which a path may have too.
script="$(scontrol show job "$job" | sed -n 's/^ *Command=//p' | head -n 1)"
script="${script%" $*"}"
if [ ! -f "$script" ]; then script="${script%% *}"; fi
program="$(find_program "${script:-$0}")" || exit 78
max_restarts="${MAX_RESTARTS:-1000}"

# SITE has the settings of a machine (jobscripts/machines). Without it, the modules the program was built with belong
# here:
# module load gcc openmpi hdf5-parallel
if [ -n "${SITE:-}" ]; then
  set +u  # the scripts of modules may look at variables that are not set
  # shellcheck source=/dev/null
  if ! source "$SITE"; then echo "SITE=$SITE cannot be read, or a module of it is missing" >&2 && exit 78; fi
  set -u
fi

# One thread per core of a rank: with --cpus-per-task above 1 GEMMs use several threads. Ranks on GPUs
# run one.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
export OPENBLAS_NUM_THREADS="$OMP_NUM_THREADS"
if [ -n "${SLURM_GPUS_ON_NODE:-}" ]; then export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1; fi

# seconds_of D-HH:MM:SS | HH:MM:SS | MM:SS | SS; nothing for UNLIMITED and the like
seconds_of() {
  [[ "$1" =~ ^(([0-9]+)-)?([0-9]+:){0,2}[0-9]+$ ]] || return 0
  local days=0 clock="$1" hours=0 minutes=0 seconds=0 fields
  if [[ "$clock" == *-* ]]; then days="${clock%%-*}" clock="${clock#*-}"; fi
  IFS=: read -r -a fields <<< "$clock"
  case ${#fields[@]} in
    3) hours="${fields[0]}" minutes="${fields[1]}" seconds="${fields[2]}" ;;
    2) minutes="${fields[0]}" seconds="${fields[1]}" ;;
    1) seconds="${fields[0]}" ;;
  esac
  echo $((10#$days * 86400 + 10#$hours * 3600 + 10#$minutes * 60 + 10#$seconds))
}

limit=()
left="$(seconds_of "$(squeue -h -j "$job" -o %L)")"
if [ -z "$left" ] && [[ "${SLURM_JOB_END_TIME:-}" =~ ^[0-9]+$ ]]; then left=$((SLURM_JOB_END_TIME - $(date +%s))); fi
if [ -n "$left" ]; then
  # The program counts from its own start. 1, not 0, which would be no limit.
  left=$((left - ${LAUNCH_SECONDS:-30}))
  if [ "$left" -lt 1 ]; then left=1; fi
  limit=(--set "run.wall_time_limit=$left")
fi
# For the ledger of the run (doc/reliability.md), in seconds since 1970.
job_time() {
  local text
  text="$(shown "$1")"
  if [ -n "$text" ]; then date -d "$text" +%s; fi
}
NANOTRON_SUBMIT_TIME="$(job_time SubmitTime 2>/dev/null)"
NANOTRON_JOB_START_TIME="$(job_time StartTime 2>/dev/null)"
export NANOTRON_SUBMIT_TIME NANOTRON_JOB_START_TIME
echo "job $job, restart ${SLURM_RESTART_COUNT:-0}: ${left:-no limit of} seconds left"

export STATUS_FILE="${STATUS_FILE:-$PWD/nanotron-$SLURM_JOB_ID.status}"
deck="$1"

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

# nodes_to_leave <hosts that are excluded anyway>: those of this job, after the second failure and each later one, where the
# partition has as many others
nodes_to_leave() {
  local failures nodes others
  read -r _ failures <<<"$verdict"
  if [ "${failures:-0}" -lt 2 ]; then return; fi
  nodes="$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}")"
  others="$(sinfo -h -N -p "${SLURM_JOB_PARTITION:-}" -t idle,mixed,allocated -o %N | sort -u |
    grep -cvxF "$(printf '%s\n' "$nodes"; tr , '\n' <<<"$1" | sed '/^$/d')")"
  if [ "$others" -ge "${SLURM_JOB_NUM_NODES:-1}" ]; then paste -sd, <<<"$nodes"; fi
}

# user_excluded: the hosts of the user's --exclude, separated by commas
user_excluded() {
  local list
  list="$(shown ExcNodeList)"
  if [ -n "$list" ] && [ "$list" != "(null)" ]; then scontrol show hostnames "$list" | paste -sd,; fi
}

# union <hosts separated by commas>...: each once
union() { printf '%s,' "$@" | tr , '\n' | sort -u | sed '/^$/d' | paste -sd,; }

# excluded_hosts: hosts with a detected hardware fault, separated by commas
excluded_hosts() {
  local file
  file="$(status_of output_dir)/excluded_hosts"
  if [ -f "$file" ]; then cut -d' ' -f1 "$file" | cut -d. -f1 | sort -u | paste -sd,; fi
}

# into_the_queue <argument of this script>...: requeues this job, or submits a dependent one if requeueing is forbidden or not wanted
into_the_queue() {
  local faulty hosts leaving
  faulty="$(excluded_hosts)"
  # Of the first job of a chain: those that follow exclude EXCLUDED too.
  export USER_EXCLUDED="${USER_EXCLUDED-$(user_excluded)}"
  leaving="$(nodes_to_leave "$faulty,$USER_EXCLUDED")"
  export LEFT_NODES="${leaving:-${LEFT_NODES:-}}"
  hosts="$(union "$faulty" "$LEFT_NODES")"
  if [ "$hosts" = "${EXCLUDED:-}" ] && [ "${REQUEUE:-yes}" = no ]; then
    echo "submitting a dependent job (REQUEUE=no)"
  elif [ "$hosts" = "${EXCLUDED:-}" ]; then  # as this job was submitted: a running job cannot exclude more
    if scontrol requeue "$job"; then return; fi
    echo "requeueing is not allowed here: submitting a dependent job"
  else
    echo "submitting a dependent job without ${hosts:-the exclusion of hosts}"
    export EXCLUDED="$hosts"
  fi
  export RESTARTS=$((starts + 1))
  local asked=(--nodes="${SLURM_JOB_NUM_NODES:-1}") time excluded
  if [ -n "${SLURM_NTASKS_PER_NODE:-}" ]; then asked+=(--ntasks-per-node="$SLURM_NTASKS_PER_NODE"); fi
  if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then asked+=(--cpus-per-task="$SLURM_CPUS_PER_TASK"); fi
  if [ -n "${SLURM_GPUS_PER_NODE:-}" ]; then asked+=(--gpus-per-node="$SLURM_GPUS_PER_NODE"); fi
  if [ -n "${SLURM_JOB_PARTITION:-}" ]; then asked+=(--partition="$SLURM_JOB_PARTITION"); fi
  if [ -n "${SLURM_JOB_ACCOUNT:-}" ]; then asked+=(--account="$SLURM_JOB_ACCOUNT"); fi
  if [ -n "${SLURM_JOB_QOS:-}" ]; then asked+=(--qos="$SLURM_JOB_QOS"); fi
  excluded="$(union "${EXCLUDED:-}" "$USER_EXCLUDED")"
  if [ -n "$excluded" ]; then asked+=(--exclude="$excluded"); fi
  time="$(squeue -h -j "$job" -o %l)"
  if [ -n "$time" ]; then asked+=(--time="$time"); fi
  # An element continues as its own job. RESTARTS has this job's count of restarts, which Slurm sets only from 1 on.
  # shellcheck disable=SC2086  # SUBMIT_OPTIONS is a list
  if env -u SLURM_ARRAY_JOB_ID -u SLURM_ARRAY_TASK_ID -u SLURM_RESTART_COUNT \
    sbatch ${SUBMIT_OPTIONS:-} --dependency="afterany:$job" --export=ALL "${asked[@]}" "$script" "$@"; then return; fi
  echo "sbatch failed: requeueing this job instead" >&2
  if ! scontrol requeue "$job"; then echo "requeueing failed too: NO JOB FOLLOWS, submit it again" >&2; fi
}

starts=$((${RESTARTS:-0} + ${SLURM_RESTART_COUNT:-0}))
if [ "$lost" = yes ]; then
  verdict="$(judge "a lost node or batch script")"
  if [[ "$verdict" != again* ]]; then echo "$verdict: not started" >&2 && exit 71; fi
  if [ "$starts" -gt "$max_restarts" ]; then echo "$starts restarts: not started (MAX_RESTARTS)" >&2 && exit 71; fi
fi
sed -i 's/^state = .*/state = launching/' "$STATUS_FILE"
grep -q '^state = ' "$STATUS_FILE" || { [ $? -eq 1 ] || exit 71; echo "state = launching" >>"$STATUS_FILE"; }  # 2: it cannot be read

# Signals to this shell (scancel --batch, or a grace time before preemption) ask the program to stop; then the job is
# judged as usual. scancel --full --signal=TERM also reaches srun, which kills the ranks: that start is lost.
signalled=""
trap 'signalled=yes; scancel --signal=USR1 "$job"' TERM USR1 USR2

# A rank that dies would leave the others waiting in a collective: --kill-on-bad-exit=1. Since Slurm
# 22.05 srun does not inherit --cpus-per-task, and --cpu-bind=cores would leave a rank one core.
mpi=(--mpi="${MPI_TYPE:-pmix}")
if [ "${MPI_TYPE:-}" = default ]; then mpi=(); fi
launch srun ${mpi[@]+"${mpi[@]}"} --kill-on-bad-exit=1 \
  --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --cpu-bind="${CPU_BIND:-cores}" \
  "$program" --status "$STATUS_FILE" ${limit[@]+"${limit[@]}"} ${sweep[@]+"${sweep[@]}"} "${@:2}" "$deck"
code=$?

state="$(status_of state)"
verdict="$(judge "exit code $code")"
case $verdict in again* | failed*) sed -i 's/^state = .*/state = judged/' "$STATUS_FILE" ;; esac
case $verdict in
  finished) echo "finished" && exit 0 ;;
  held) echo "stopped by the file STOP: not requeued; to continue: STATUS_FILE=$STATUS_FILE sbatch ..." && exit "$code" ;;
  again*)
    if [ "$starts" -ge "$max_restarts" ]; then
      echo "exit code $code after $starts restarts: not requeued (MAX_RESTARTS)" >&2
    elif [ -n "$signalled" ] && [ "$(squeue -h -j "$job" -o %T)" != RUNNING ]; then
      echo "exit code $code: Slurm is ending this job: not requeued" >&2
    else
      echo "exit code $code, state $state: requeueing the job"
      into_the_queue "$@"
    fi
    ;;
  *) echo "$verdict: not requeued" >&2 ;;
esac
if [ "$code" -eq 0 ]; then code=71; fi  # not finished, whatever the launcher says
exit "$code"
