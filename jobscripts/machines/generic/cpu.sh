# shellcheck shell=bash disable=SC2034
# A cluster of CPU nodes with Slurm, a rank per core: a file to copy for a machine that has none here. Never run as it
# is.
#
#   CORES=64 jobscripts/submit.sh jobscripts/machines/generic/cpu.sh --account=<project> --partition=<name> -- \
#     input.deck
#
# What to ask the site: partition and account, cores per node, modules, srun --mpi=list, the scratch folder and when
# files are deleted there, the longest wall time, whether scontrol requeue is allowed.

submit=sbatch
site_options=(--nodes=2 --ntasks-per-node="${CORES:-64}" --cpus-per-task=1 --threads-per-core=1)

# module load gcc openmpi hdf5-parallel || return 1

MPI_TYPE="${MPI_TYPE:-pmix}"  # what Open MPI wants; Cray MPICH and the like: default
