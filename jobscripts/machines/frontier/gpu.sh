# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-27 in stored copies that may be older.
# Frontier, OLCF: nodes with four MI250X, which are eight GPUs of 64 GB. Slurm.
#
#   jobscripts/submit.sh jobscripts/machines/frontier/gpu.sh --account=<project> --nodes=4 -- input.deck
#
# Sources, in [] below:
#   [1] https://docs.olcf.ornl.gov/systems/frontier_user_guide.html: eight GPUs and 64 cores a node, of which the
#       system keeps one in eight; 200 GB/s between the two dies of an MI250X, 50 to 100 GB/s between others
#   [2] not OLCF's, but used there: https://github.com/ECP-WarpX/WarpX (Docs/source/install/hpc/frontier.rst): files in
#       $MEMBERWORK and $PROJWORK are purged after 90 days; $HOME is read-only on compute nodes
#   [3] the order of GPUs beside the cores, as jobscripts/machines/lumi/gpu.sh [4]: the nodes are alike
#   [4] https://gist.github.com/frobnitzem/0bd3be6084115d7d58d30e6753abb251 (OLCF staff, 2023) and
#       https://github.com/ROCm/aws-ofi-rccl: RCCL needs this plugin for Slingshot, or it goes over TCP
# Not found: a module of aws-ofi-rccl, or of Kokkos with HIP.
# Build: --preset hip -DNANOTRON_ARCH=znver3, and Kokkos for AMD_GFX90A.

submit=sbatch
site_options=(--partition=batch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=7)  # [1]

module load PrgEnv-amd craype-accel-amd-gfx90a rocm cray-hdf5-parallel cmake || return 1  # names [1]; add versions

MPI_TYPE="${MPI_TYPE:-default}"  # Cray MPICH
export ROCR_VISIBLE_DEVICES=4,5,2,3,6,7,0,1  # every rank sees all GPUs, its own at its place [3]
export FI_MR_CACHE_MONITOR=userfaultfd  # memhooks may deadlock beside RCCL, as beside NCCL
export NCCL_SOCKET_IFNAME=hsn  # Slingshot, should RCCL need sockets
export MPICH_GPU_SUPPORT_ENABLED=0  # GPU data goes through RCCL, not MPI
