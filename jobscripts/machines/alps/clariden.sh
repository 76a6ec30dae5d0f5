# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-26 in stored copies that may be older.
# Clariden on Alps, CSCS: nodes with four GH200 of 96 GB. Slurm. (Daint is alike.)
#
#   jobscripts/submit.sh jobscripts/machines/alps/clariden.sh --account=<project> --nodes=4 -- input.deck
#   UENV=prgenv-gnu/25.6:v2 jobscripts/submit.sh ...
#
# Sources, in [] below: CSCS's documentation, https://docs.cscs.ch, read in https://github.com/eth-cscs/cscs-docs
# (80abed1 of 2026-08-20, docs/):
#   [1] clusters/clariden.md: partition normal (12 h, whole nodes), debug (4 nodes, 1.5 node-hours), low (24 h)
#   [2] running/slurm.md: four ranks a node; without --gpus-per-task each rank sees all GPUs
#   [3] software/communication/nccl_env_vars and nccl.md: NCCL uses Slingshot through aws-ofi-nccl, which uenvs have;
#       NCCL_NET makes a start without it fail instead of falling back to TCP. Where NCCL hangs, try
#       FI_CXI_RDZV_GET_MIN=0 FI_CXI_RDZV_THRESHOLD=0 FI_CXI_RDZV_EAGER_SIZE=0
#   [4] software/communication/cray-mpich.md: no GPU-aware MPI: it may deadlock beside NCCL, and slows host messages
#   [5] storage/filesystems.md: files that were not accessed for 30 days (/capstor/scratch/cscs/$USER) or 14 days
#       (/iopsstor/scratch/cscs/$USER) are deleted
#   [6] build-install/python.md, access/vscode.md: a uenv is named with its version; sbatch takes --uenv and --view
# Not found: a uenv with parallel HDF5 and Kokkos of this version; see uenv image find. Login nodes have GH200 too.
# Build: aarch64, -DNANOTRON_ARCH=native on a GH200; the CUDA architecture is the default, 90.

submit=sbatch
site_options=(--partition=normal --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=72
  --uenv="${UENV:-prgenv-gnu/25.6:v2}" --view=default)  # [1, 2, 6]; a Grace has 72 cores

MPI_TYPE="${MPI_TYPE:-default}"  # Cray MPICH
export CUDA_VISIBLE_DEVICES=0,1,2,3  # every rank sees all GPUs of its node (doc/install.md)
export NCCL_NET="AWS Libfabric" NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1 NCCL_PROTO=^LL128  # [3]
export FI_CXI_DEFAULT_CQ_SIZE=131072 FI_CXI_DEFAULT_TX_SIZE=16384 FI_CXI_RX_MATCH_MODE=software  # [3]
export FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd  # [3]
export MPICH_GPU_SUPPORT_ENABLED=0  # [4]
