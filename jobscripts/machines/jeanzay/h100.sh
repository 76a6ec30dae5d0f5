# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-26 in stored copies that may be older.
# Jean Zay, IDRIS: the partition with four H100 of 80 GB a node (gpu_p6). Slurm.
#
#   jobscripts/submit.sh jobscripts/machines/jeanzay/h100.sh --account=<project>@h100 --nodes=4 -- input.deck
#
# Sources, in [] below:
#   [1] https://www.idris.fr/en/docs/jean-zay/slurm/slurm_partitions_gpu (its beginning): partitions are chosen by
#       constraints; the default time is 10 minutes, so slurm.sh's --time matters
#   [2] https://www.idris.fr/en/docs/jean-zay/slurm/slurm_partitions_cpu: the H100 partition is gpu_p6, of Eviden, with
#       Intel processors; compile in the partition compil_H100, which has the same
#   [3] not IDRIS', but used there: scripts of users in public repositories, whose names the search does not give:
#       module load arch/h100 before all other modules, --hint=nomultithread, files in $SCRATCH are deleted after about
#       30 days, $WORK is kept
# Not found: IDRIS' page of the H100 partition with its QOS and limits, and what it says on NCCL and --mpi. The 24
# cores a GPU are a quarter of a node of 96; compare with the page.
# Build: -DNANOTRON_ARCH=sapphirerapids; the CUDA architecture is the default, 90.

submit=sbatch
site_options=(--constraint=h100 --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=24
  --hint=nomultithread)  # [1, 3]

module load arch/h100 || return 1  # [3]
module load gcc cuda openmpi hdf5 cmake || return 1  # names; add the versions you built with

MPI_TYPE="${MPI_TYPE:-default}"  # see srun --mpi=list
export CUDA_VISIBLE_DEVICES=0,1,2,3  # every rank sees all GPUs of its node (doc/install.md)
