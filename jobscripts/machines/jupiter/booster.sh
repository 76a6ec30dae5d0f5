# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-26 in stored copies that may be older.
# JUPITER Booster, JSC: nodes with four GH200 of 96 GB. Slurm (ParaStation).
#
#   jobscripts/submit.sh jobscripts/machines/jupiter/booster.sh --account=<budget> --nodes=4 -- input.deck
#
# Sources, in [] below:
#   [1] https://apps.fz-juelich.de/jsc/hps/jupiter/configuration.html: four GH200 with 72 cores and 120 GB, four NDR200
#       InfiniBand adapters a node; about 6000 nodes in groups of 240
#   [2] https://apps.fz-juelich.de/jsc/hps/jupiter/batchsystem.html (its beginning): Slurm's commands, but ParaStation's
#       psid starts the ranks on the nodes. Its table of partitions and wall times was not in the copy
#   [3] JSC's tutorial for JUWELS, https://github.com/FZJ-JSC/tutorial-multi-gpu (859b32b): partition booster,
#       --gres=gpu:4, srun without --mpi
#   [4] not JSC's, but used on JUWELS: https://github.com/BLAST-WarpX/warpx (1b312c6, Tools/machines/juwels-jsc):
#       modules, OMPI_MCA_io
# From JUWELS, so to be checked here: [3, 4]. Not found: what JSC says on NCCL, UCX and binding on JUPITER; NCCL finds
# InfiniBand by itself.
# Build: aarch64, -DNANOTRON_ARCH=native on a GH200; the CUDA architecture is the default, 90.

submit=sbatch
site_options=(--partition=booster --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=72)  # [1, 3]

module load GCC CUDA OpenMPI HDF5 NCCL CMake || return 1  # names [4]

MPI_TYPE="${MPI_TYPE:-default}"  # [3]
CPU_BIND="${CPU_BIND:-sockets}"  # a Grace each [1]
export CUDA_VISIBLE_DEVICES=0,1,2,3  # every rank sees all GPUs of its node (doc/install.md)
export OMPI_MCA_io=romio321  # for HDF5 [4]
