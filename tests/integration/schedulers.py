"""Stand-ins for Slurm, PBS and PJM: commands of their names that run a job script at once on this machine."""
import os
import shutil
from pathlib import Path

# sbatch: the job script, copied as Slurm does it, with what it may ask for. The elements of --array=1-N run in turn.
SBATCH = """#!/bin/bash
if [[ " $*" = *" --dependency="* ]]; then
  echo "sbatch $*${SLURM_ARRAY_JOB_ID:+ with the variables of an array}" >> "$STAND_IN_LOG"
  exit "${STAND_IN_SBATCH:-0}"
fi
if [[ "$1" = -* ]]; then echo "sbatch $*" >> "$STAND_IN_LOG"; fi
elements=""
while [[ "$1" = -* ]]; do
  if [[ "$1" = --array=1-* ]]; then elements="$(seq "${1#--array=1-}")"; fi
  shift
done
job="$(mktemp -p "$(dirname "$STAND_IN_LOG")")" && cp "$1" "$job"
export SLURM_JOB_ID=7 SLURM_SUBMIT_DIR="$PWD" STAND_IN_SCRIPT="$(realpath "$1")"
if [ -z "$elements" ]; then exec bash "$job" "${@:2}"; fi
for element in $elements; do
  SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID="$element" bash "$job" "${@:2}" || code=$?
done
exit "${code:-0}"
"""
SQUEUE = "#!/bin/bash\necho 1:00:00\n"
SINFO = "#!/bin/bash\nprintf '%s\\n' ${STAND_IN_NODES:-}\n"
SCONTROL = """#!/bin/bash
if [ "$1 $2" = "show hostnames" ]; then tr , '\\n' <<< "$3" && exit; fi
echo "scontrol $*" >> "$STAND_IN_LOG"
if [ "$1" = requeue ]; then exit "${STAND_IN_REQUEUE:-0}"; fi
if [ "$1 $2" = "show job" ]; then printf '   Command=%s input.deck\\n   WorkDir=/\\n' "$STAND_IN_SCRIPT"; fi
"""
# srun as it is, or with STAND_IN_LAUNCH: `nothing` is started but 0 returned; `killed`: a rank dies after the first
# checkpoint; `waits`: for hosts that do not answer, after a verdict; a number: that exit code and nothing started.
SRUN = """#!/bin/bash
echo "srun $*" >> "$STAND_IN_LOG"
while [[ "${1:-}" == -* ]]; do shift; done
case "${STAND_IN_LAUNCH:-}" in
  "") exec "$NANOTRON_MPIEXEC" -n 2 "$@" ;;
  nothing) exit 0 ;;
  killed) ;;
  waits)
    if [ -z "${STAND_IN_ENDS:-}" ]; then trap "" TERM; fi
    mkdir -p "$STAND_IN_RUN/hang"
    printf 'state = running\noutput_dir = %s\ncheckpoint = \n' "$STAND_IN_RUN" > "$STATUS_FILE"
    touch "$STAND_IN_RUN/hang/verdict.txt"
    if [ -n "${STAND_IN_ENDS:-}" ]; then exec sleep 90; fi
    for _ in $(seq 90); do sleep 1; done
    exit 0
    ;;
  *) exit "$STAND_IN_LAUNCH" ;;
esac
before="$(sed -n 's/^checkpoint = //p' "$STATUS_FILE" 2>/dev/null)"
"$NANOTRON_MPIEXEC" -n 2 "$@" &
launcher=$!
until [ "$(sed -n 's/^checkpoint = //p' "$STATUS_FILE" 2>/dev/null)" != "$before" ] || ! kill -0 "$launcher"; do sleep 0.02; done
pkill -KILL -n -P "$launcher" nanotron_hpc
wait "$launcher"
exit 137
"""
MPIEXEC = """#!/bin/bash
if [ "${STAND_IN_LAUNCH:-}" = nothing ]; then exit 0; fi
exec "$NANOTRON_MPIEXEC" "$@"
"""
# qsub -v NAME=value,... <script>, or qsub <option>... -V <script>: PBS too runs a copy. The elements of -J 1-N run in
# turn.
QSUB = """#!/bin/bash
if [ "$1" = -v ]; then
  IFS=, read -r -a variables <<< "$2"
  for variable in "${variables[@]}"; do export "$variable"; done
  shift 2
fi
if [ "$1" = -W ] || [ "$1" = -a ]; then echo "qsub $*" >> "$STAND_IN_LOG"; exit; fi
if [[ "$1" = -* ]]; then echo "qsub $*" >> "$STAND_IN_LOG"; fi
elements=""
while [ $# -gt 1 ]; do
  if [ "$1" = -J ]; then elements="$(seq "${2#1-}")"; fi
  shift
done
job="$(mktemp -p "$(dirname "$STAND_IN_LOG")")" && cp "$1" "$job"
nodes="$(mktemp -p "$(dirname "$STAND_IN_LOG")")" && printf 'localhost\\nlocalhost\\n' > "$nodes"
export PBS_JOBID=7.server PBS_O_WORKDIR="$PWD" PBS_NODEFILE="$nodes"
if [ -z "$elements" ]; then exec bash "$job"; fi
for element in $elements; do
  PBS_JOBID="7[$element].server" PBS_ARRAY_INDEX="$element" bash "$job" || code=$?
done
exit "${code:-0}"
"""
QSTAT = "#!/bin/bash\necho '    Resource_List.walltime = 01:00:00'\n"
# pjsub <option>... <script>: a copy too. -x NAME takes the value of this shell. A job submitted from a job is noted only.
# The elements of --bulk --sparam 1-N run in turn, and those of a step job are numbered.
PJSUB = """#!/bin/bash
echo "pjsub $*" >> "$STAND_IN_LOG"
if [ -n "${PJM_JOBID:-}" ]; then
  if [[ " $* " = *" --step "* ]]; then exit "${STAND_IN_STEP_JOB:-0}"; fi
  exit "${STAND_IN_PJSUB:-0}"
fi
elements="" bulk="" step=""
passed=("PATH=$PATH" "HOME=$HOME" "PJM_O_WORKDIR=$PWD" PJM_NODE=2 "PJM_MPI_PROC=${STAND_IN_PROC:-2}")
while [ $# -gt 1 ]; do
  case $1 in
    -x) if [[ "$2" = *=* ]]; then passed+=("$2"); elif [ -n "${!2+set}" ]; then passed+=("$2=${!2}"); fi; shift 2 ;;
    --bulk) bulk=yes && shift ;;
    --step) step=yes && shift ;;
    --sparam) elements="${2#1-}" && shift 2 ;;
    -z | -L | -g | --mpi) shift 2 ;;
    *) shift ;;
  esac
done
while IFS= read -r line; do  # what tests set and NANOTRON_MPIEXEC are there in spite of PJM
  if [[ "$line" =~ ^(STAND_IN|NANOTRON|OMPI|PMIX|PRTE|LD_|UCX|TMPDIR) ]]; then passed+=("$line"); fi
done < <(env)
job="$(mktemp -p "$(dirname "$STAND_IN_LOG")")" && cp "$1" "$job"
if [ -n "$step" ]; then passed+=(PJM_STEPNUM="${STAND_IN_NUMBER:-0}" PJM_SUBJOBID=7_"${STAND_IN_NUMBER:-0}"); fi
if [ -z "$bulk" ]; then exec env -i "${passed[@]}" PJM_JOBID=7 bash "$job"; fi
for element in $(seq "$elements"); do
  env -i "${passed[@]}" PJM_JOBID=7 PJM_SUBJOBID="7[$element]" PJM_BULKNUM="$element" bash "$job" || code=$?
done
exit "${code:-0}"
"""
PJSTAT = """#!/bin/bash
if [ "$1" = -s ]; then
  printf ' ELAPSE TIME (LIMIT)         : 01:00:00 (3600)\\n ELAPSE TIME (USE)           : 00:00:02 (2)\\n'
  printf ' JOB START DATE              : 2026/01/02 04:00:00<\\n ACCEPT DATE                 : 2026/01/02 03:04:05\\n'
fi
"""


def install(folder, log):
    """Writes the commands into `folder`; returns the environment in which they are found, and note in `log`."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    commands = dict(sbatch=SBATCH, squeue=SQUEUE, sinfo=SINFO, scontrol=SCONTROL, srun=SRUN, mpiexec=MPIEXEC, qsub=QSUB, qstat=QSTAT,
                    pjsub=PJSUB, pjstat=PJSTAT)
    for name, text in commands.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", STAND_IN_LOG=str(log),
                NANOTRON_MPIEXEC=shutil.which(os.environ.get("NANOTRON_MPIEXEC", "mpiexec")))
