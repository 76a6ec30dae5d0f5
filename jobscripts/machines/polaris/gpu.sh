# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-23 in stored copies that may be older.
# Polaris, ALCF: nodes with four A100 of 40 GB. PBS.
#
#   NODES=10 WALLTIME=03:00:00 jobscripts/submit.sh jobscripts/machines/polaris/gpu.sh -A <project> -- input.deck
#   QUEUE=debug NODES=2 WALLTIME=01:00:00 jobscripts/submit.sh ...
#
# Sources, in [] below: ALCF's user guides, https://docs.alcf.anl.gov, read in
# https://github.com/argonne-lcf/user-guides (7d04a3f of 2026-08-19, docs/):
#   [1] polaris/running-jobs: queues debug (1 to 2 nodes, 1 h), debug-scaling (10 nodes, 1 h), preemptable (10 nodes,
#       72 h) and prod, which routes 10 to 24 nodes (3 h), 25 to 99 (6 h), 100 to 496 (24 h); preemptable may kill
#       without warning
#   [2] running-jobs: project, walltime and filesystems are mandatory; place=scatter gives each chunk a node of its own
#   [3] running-jobs/example-job-scripts.md: a rank per GPU, --ppn 4 --depth 8 --cpu-bind depth: a NUMA domain each
#   [4] polaris/index.md and running-jobs/using-gpus.md: cores 0-7 are next to GPU 3, 24-31 to GPU 0, hence the reverse
#       order
#   [5] polaris/applications-and-libraries/libraries/nccl.md: the NCCL_ and FI_ variables and the two folders, 2 to 3
#       times faster; where NCCL hangs with the plugin, unset NCCL_NET_GDR_LEVEL NCCL_CROSS_NIC NCCL_COLLNET_ENABLE
#       NCCL_NET
#   [6] data-management/filesystem-and-storage and policies: run in /eagle/<project>: no backup, no purge while the
#       project lasts; writes stop when it ends. /home (50 GB) is not for output, /local/scratch is each node's own
#   [7] polaris/compiling-and-linking, programming-models/kokkos-polaris.md: modules; the wrappers cc and CC compile
#   [8] https://github.com/BLAST-WarpX/warpx (1b312c6, Tools/machines/polaris-alcf), not ALCF's: cray-hdf5-parallel,
#       cmake
#   [9] https://docs.cscs.ch/software/communication/nccl (CSCS, the same network): GPU-aware MPI off beside NCCL
# ALCF's NCCL lies in /soft/libraries/nccl [5]: -DNCCL_ROOT. Whether its version is 2.26 or newer was not found.
# Build: -DNANOTRON_ARCH=znver3 -DCMAKE_CUDA_ARCHITECTURES=80, and Kokkos for AMPERE80.

submit="qsub"
site_options=(-q "${QUEUE:-prod}" -l "select=${NODES:-10}:system=polaris" -l place=scatter
  -l "walltime=${WALLTIME:-03:00:00}" -l filesystems=home:eagle)  # [1, 2]

# shellcheck source=/dev/null
if ! command -v module > /dev/null; then source /etc/profile; fi
module use /soft/modulefiles || return 1  # [7]
module load PrgEnv-gnu nvidia-mixed craype-x86-milan craype-accel-nvidia80 || return 1  # [7]
module load cray-hdf5-parallel cmake || return 1  # [8]

RANKS_PER_NODE=4
MPIEXEC_OPTIONS="--ppn 4 --depth 8 --cpu-bind depth"  # [3]
export CUDA_VISIBLE_DEVICES=3,2,1,0  # [4]
export NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1 NCCL_COLLNET_ENABLE=1 NCCL_NET="AWS Libfabric"  # [5]
export FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd FI_CXI_DEFAULT_CQ_SIZE=131072  # [5]
plugin=/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib
export LD_LIBRARY_PATH="$plugin:/soft/libraries/hwloc/lib:${LD_LIBRARY_PATH:-}"  # [5]
export MPICH_GPU_SUPPORT_ENABLED=0  # GPU data goes through NCCL, not MPI [9]
