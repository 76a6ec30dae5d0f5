# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-26 in stored copies that may be older.
# Isambard-AI, BriCS (Bristol): nodes with four GH200 of 96 GB. Slurm.
#
#   jobscripts/submit.sh jobscripts/machines/isambard/ai.sh --account=<project> --nodes=4 -- input.deck
#
# Sources, in [] below:
#   [1] https://docs.isambard.ac.uk/user-documentation/guides/nccl: module brics/nccl has NCCL, aws-ofi-nccl and the
#       variables for Slingshot; cache monitor and host register prevent hangs
#   [2] https://docs.isambard.ac.uk/user-documentation/guides/example-data/nccl/env_vars.sh: the variables, also those
#       that switch eager messages off
#   [3] https://docs.isambard.ac.uk/user-documentation/information/how-isambard-works/: jobs go through Slurm
#   [4] https://glennklockwood.com/garden/systems/Isambard-AI, not BriCS': four GH200 with 72 cores and four Slingshot
#       adapters a node
#   [5] not BriCS', but used there: https://github.com/rainx0r/rstack (fd4518e): jobs of at most 24 h, data in
#       $SCRATCHDIR and $PROJECTDIR
#   [6] https://docs.cscs.ch/software/communication/nccl (CSCS, the same network): GPU-aware MPI off beside NCCL
# Not found: the page of partitions and limits, and the modules of MPI and parallel HDF5: see module avail.
# Build: aarch64, -DNANOTRON_ARCH=native on a GH200; the CUDA architecture is the default, 90.

submit=sbatch
site_options=(--nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=72)  # [4]

module load brics/nccl || return 1  # [1]; add the modules you built with

MPI_TYPE="${MPI_TYPE:-default}"  # Cray MPICH; srun --mpi=list shows others
export CUDA_VISIBLE_DEVICES=0,1,2,3  # every rank sees all GPUs of its node (doc/install.md)
export NCCL_NET="AWS Libfabric" NCCL_SOCKET_IFNAME=hsn NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1  # [1]
export NCCL_MIN_NCHANNELS=4 NCCL_GDRCOPY_ENABLE=1  # [1]
export FI_CXI_DEFAULT_CQ_SIZE=131072 FI_CXI_DEFAULT_TX_SIZE=1024 FI_CXI_DISABLE_NON_INJECT_MSG_IDC=1  # [1]
export FI_HMEM_CUDA_USE_GDRCOPY=1 FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd  # [1]
export MPICH_GPU_SUPPORT_ENABLED=0  # [6]
