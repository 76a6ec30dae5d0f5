# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-27 in stored copies that may be older.
# LUMI-G, CSC: nodes with four MI250X, which are eight GPUs of 64 GB. Slurm.
#
#   jobscripts/submit.sh jobscripts/machines/lumi/gpu.sh --account=project_<number> --nodes=4 -- input.deck
#
# Sources, in [] below:
#   [1] https://zenodo.org/records/10683366 (LUMI architecture, 2024): 2978 nodes with four MI250X, Slingshot 11
#   [2] not CSC's, but used there: https://github.com/ECP-WarpX/WarpX (Docs/source/install/hpc/lumi.rst,
#       Tools/machines/lumi-csc): partition standard-g, 8 ranks and --gpus-per-node=8, the libfabric cache monitor;
#       /scratch/<project> is purged after 90 days
#   [3] the same: https://github.com/SeisSol/SeisSol (Documentation/lumi.rst) and
#       https://github.com/lucak17/ParallelPoissonSolver (solverPoissonMPI_alpaka/env/lumi): modules, hipcc with Cray MPICH
#   [4] https://gist.github.com/BenWibking/22bb80dd80ad087297433efb97f56c45, for Pawsey's nodes, which are alike: the
#       GPU next to the cores of rank 0, 1, ... is 4, 5, 2, 3, 6, 7, 0, 1
#   [5] https://github.com/ROCm/aws-ofi-rccl: without this plugin RCCL goes over TCP; see module avail rccl
# Not found: CSC's own page on RCCL and the cores that the system keeps (7 of 8 cores a rank are taken here), and modules
# of parallel HDF5 and Kokkos with HIP in these versions.
# Build: --preset hip -DNANOTRON_ARCH=znver3, and Kokkos for AMD_GFX90A.

submit=sbatch
site_options=(--partition=standard-g --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=7)  # [2]

module load LUMI partition/G || return 1  # [3]
module load PrgEnv-amd craype-accel-amd-gfx90a rocm cray-hdf5-parallel buildtools || return 1  # [3]; add versions

MPI_TYPE="${MPI_TYPE:-default}"  # Cray MPICH
export ROCR_VISIBLE_DEVICES=4,5,2,3,6,7,0,1  # every rank sees all GPUs, its own at its place [4]
export FI_MR_CACHE_MONITOR=userfaultfd  # memhooks [2] may deadlock beside RCCL, as beside NCCL
export NCCL_SOCKET_IFNAME=hsn  # Slingshot, should RCCL need sockets
export MPICH_GPU_SUPPORT_ENABLED=0  # GPU data goes through RCCL, not MPI
