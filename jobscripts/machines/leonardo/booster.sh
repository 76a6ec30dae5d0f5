# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-23 in stored copies that may be older.
# Leonardo Booster, CINECA: nodes with four A100 of 64 GB. Slurm.
#
#   jobscripts/submit.sh jobscripts/machines/leonardo/booster.sh --account=<project> --nodes=4 -- input.deck
#
# Sources, in [] below:
#   [1] https://docs.hpc.cineca.it/hpc/leonardo.html (its beginning): 32 cores and four A100 a node, InfiniBand HDR
#   [2] https://wiki.u-gov.it/confluence/display/SCAIUS/Booster+Section (its beginning): account, partition and time
#       are given; nodes are shared, so a job asks for all it wants; srun is the recommended launcher
#   [3] the same page's table, in a copy elsewhere: boost_usr_prod up to 64 nodes and 24:00:00; --qos=boost_qos_dbg 2
#       nodes, 00:30:00; boost_qos_bprod 65 to 256 nodes; boost_qos_lprod few nodes, 4 days
#   [4] https://wiki.u-gov.it/confluence/display/SCAIUS/4%3A+Data+storage+and+FileSystems: run in $SCRATCH, from which
#       files are deleted after 40 days; $WORK (1 TB) and $FAST (1 TB, faster) of the project are kept, without backup
#   [5] not CINECA's, but used there: https://github.com/BLAST-WarpX/warpx (1b312c6, Tools/machines/leonardo-cineca):
#       partition, GPUs, CPUs, memory, modules and their versions; srun without --mpi
# Not found: what CINECA says on NCCL, UCX or binding; nothing is set, NCCL finds InfiniBand by itself. (Where its
# ranks do not find each other, users there set NCCL_SOCKET_IFNAME=ib0.) Not found either: a module of NCCL, and one of
# HDF5 for this MPI: see module avail, or Spack. CUDA 11.8 of [5] is too old here (12.4).
# Build: -DNANOTRON_ARCH=icelake-server -DCMAKE_CUDA_ARCHITECTURES=80, and Kokkos for AMPERE80.

submit=sbatch
site_options=(--partition=boost_usr_prod --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=8
  --mem=494000)  # [5]

module load profile/base cmake gcc cuda openmpi || return 1  # names [5]; add the versions you built with

MPI_TYPE="${MPI_TYPE:-default}"  # [5]
