# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-23 in stored copies that may be older.
# MareNostrum 5 ACC, BSC: nodes with four H100 of 64 GB. Slurm.
#
#   jobscripts/submit.sh jobscripts/machines/marenostrum5/acc.sh --account=<project> --nodes=4 -- input.deck
#
# BSC's pages (https://www.bsc.es/supportkc/docs/MareNostrum5/overview and .../slurm) could not be read. Sources,
# public repositories that quote or use them, whose names the search does not give:
#   [1] what users have published of these pages: 80 cores (two 8460Y+), four H100 and four NDR200 adapters a node;
#       account and QOS must be given; --gres=gpu:1 to 4 with 20 CPUs for each GPU; several nodes are exclusive;
#       acc_ehpc up to 100 nodes and 72 h, acc_debug 8 nodes and 2 h (bsc_queues lists yours, bsc_project list your
#       accounts)
#   [2] the same: srun does not inherit --cpus-per-task (slurm.sh gives it)
#   [3] notes of users: work in /gpfs/scratch/<project>, which is wiped after two weeks, /gpfs/projects/<project>
#       stays; --mem is refused; nodes have no network
#   [4] build scripts of users there: modules bsc/1.0, nvidia-hpc-sdk, ucx, openmpi, cmake
# Not found: what BSC says on NCCL, UCX and --mpi; nothing is set. The module of parallel HDF5: see module avail.
# Build: -DNANOTRON_ARCH=sapphirerapids; the CUDA architecture is the default, 90.

submit=sbatch
site_options=(--partition=acc --qos=acc_ehpc --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=20)  # [1]

module load bsc/1.0 nvidia-hpc-sdk ucx openmpi cmake || return 1  # names [4]; add the versions you built with

MPI_TYPE="${MPI_TYPE:-default}"
