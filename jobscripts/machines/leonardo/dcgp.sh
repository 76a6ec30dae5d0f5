# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-23 in stored copies that may be older.
# Leonardo DCGP, CINECA: CPU nodes, a rank per core. Slurm.
#
#   jobscripts/submit.sh jobscripts/machines/leonardo/dcgp.sh --account=<project> --nodes=4 -- input.deck
#
# Sources, in [] below:
#   [1] https://docs.hpc.cineca.it/hpc/leonardo.html (its beginning): Data Centric General Purpose, Intel Sapphire
#       Rapids
#   [2] $SCRATCH, $WORK and $FAST: as in booster.sh
#   [3] not CINECA's: job scripts and notes of users have partition dcgp_usr_prod, 112 cores a node, 24:00:00 at most
# Not found: CINECA's own page on the partition beyond its beginning, the QOS of it, its memory a node.
# Build: -DNANOTRON_ARCH=sapphirerapids, which has AMX for bf16.

submit=sbatch
site_options=(--partition=dcgp_usr_prod --nodes=2 --ntasks-per-node=112 --cpus-per-task=1 --exclusive)  # [3]

module load cmake gcc openmpi || return 1  # add the versions you built with, and HDF5 for this MPI

MPI_TYPE="${MPI_TYPE:-default}"  # as on the Booster
