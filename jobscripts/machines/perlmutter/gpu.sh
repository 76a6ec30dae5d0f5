# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-23 in stored copies that may be older.
# Perlmutter, NERSC: nodes with four A100. Slurm.
#
#   jobscripts/submit.sh jobscripts/machines/perlmutter/gpu.sh --account=<project> --nodes=4 -- input.deck
#
# Sources, in [] below:
#   [1] https://docs.nersc.gov/beginner-guide/nodetypesfig: GPU nodes have one EPYC 7763 (64 cores) and four A100, 40
#       GB, or 80 GB on 256 nodes (--constraint='gpu&hbm80g' in [5])
#   [2] https://docs.nersc.gov/jobs/policy/: production jobs take the QOS regular; without one a job gets debug. Its
#       table of wall time limits was not in the copy: look there before you ask for more than slurm.sh does
#   [3] https://docs.nersc.gov/filesystems/perlmutter-scratch/: run in $SCRATCH ($PSCRATCH), all-flash Lustre; files
#       not accessed for 8 weeks may be deleted; a file lies on one OST unless its folder is striped
#   [4] NERSC's tutorial, https://github.com/NERSC/sc24-dl-tutorial (3e6c3db, submit_pm.sh): 32 CPUs per GPU,
#       --gpu-bind=none, GPUs listed in reverse, FI_MR_CACHE_MONITOR, no locks of HDF5
#   [5] not NERSC's, but used there: https://github.com/BLAST-WarpX/warpx (1b312c6, Tools/machines/perlmutter-nersc)
#       and https://github.com/E3SM-Project/E3SM (75e17cc, config_machines.xml, pm-gpu): modules, directives, srun
#       without --mpi
#   [6] https://docs.cscs.ch/software/communication/nccl (CSCS, the same network): GPU-aware MPI off beside NCCL
# Not found: NERSC's page on NCCL, so no module and no NCCL_ variable is set here. Over Slingshot NCCL needs the plugin
# aws-ofi-nccl, or it falls back to TCP [6]: see module avail nccl.
# Build: -DNANOTRON_ARCH=znver3 -DCMAKE_CUDA_ARCHITECTURES=80, and Kokkos for AMPERE80.

submit=sbatch
site_options=(--constraint=gpu --qos=regular --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --gpu-bind=none
  --cpus-per-task=32 --threads-per-core=2)  # [4, 5]; CPUs are hardware threads, 128 a node

module load PrgEnv-gnu cudatoolkit craype-accel-nvidia80 cray-hdf5-parallel cmake || return 1  # [5]

MPI_TYPE="${MPI_TYPE:-default}"  # [5]
export CUDA_VISIBLE_DEVICES=3,2,1,0  # the GPU next to a rank's cores [4, 5]
export FI_MR_CACHE_MONITOR=userfaultfd  # [4]
export HDF5_USE_FILE_LOCKING=FALSE  # [4]
export MPICH_GPU_SUPPORT_ENABLED=0  # GPU data goes through NCCL, not MPI [6]
