# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-23 in stored copies that may be older.
# JUWELS Booster, JSC: nodes with four A100 of 40 GB. Slurm.
#
#   jobscripts/submit.sh jobscripts/machines/juwels/booster.sh --account=<budget> --nodes=4 -- input.deck
#
# Sources, in [] below:
#   [1] https://apps.fz-juelich.de/jsc/hps/juwels/booster-overview.html: two EPYC 7402 (48 cores, 8 NUMA domains), four
#       A100, four HDR200 InfiniBand adapters a node
#   [2] https://apps.fz-juelich.de/jsc/hps/juwels/batchsystem.html (its beginning): Slurm's commands, but ParaStation's
#       psid starts the ranks on the nodes. Its table of partitions and wall times was not in the copy
#   [3] JSC's tutorial, https://github.com/FZJ-JSC/tutorial-multi-gpu (859b32b, .etc/common-env/jsccourse-bashrc.sh):
#       partition booster, --gres=gpu:4, srun --cpu-bind=sockets without --mpi
#   [4] not JSC's, but used there: https://github.com/BLAST-WarpX/warpx (1b312c6, Tools/machines/juwels-jsc and
#       Docs/source/install/hpc/juwels.rst): modules, OMPI_MCA_io; $SCRATCH is purged after 90 days, $HOME is not to
#       run in
#   [5] https://github.com/ComputationalRadiationPhysics/picongpu (b5d5434, etc/picongpu/juwels-jsc/booster.tpl), which
#       quotes JSC's https://apps.fz-juelich.de/jsc/hps/juwels/faq.html: UCX_RC_TIMEOUT of 3 s against "transport retry
#       count exceeded"; the site sets CUDA_VISIBLE_DEVICES for each rank
# Not found: what JSC says on NCCL; nothing is set, NCCL finds InfiniBand by itself. (Where its ranks do not find each
# other, users there set NCCL_SOCKET_IFNAME=ib0.)
# Build: -DNANOTRON_ARCH=znver2 -DCMAKE_CUDA_ARCHITECTURES=80, and Kokkos for AMPERE80.

submit=sbatch
site_options=(--partition=booster --nodes=2 --ntasks-per-node=4 --gres=gpu:4
  --cpus-per-task=12)  # [3]; a quarter of the cores [1]

module load GCC CUDA OpenMPI HDF5 NCCL CMake || return 1  # [4]; NCCL: as in job scripts of users

MPI_TYPE="${MPI_TYPE:-default}"  # [3]
CPU_BIND="${CPU_BIND:-sockets}"  # [3]
export CUDA_VISIBLE_DEVICES=0,1,2,3  # every rank sees all GPUs of its node (doc/install.md)
export UCX_RC_TIMEOUT=3000000.00us  # [5]
export OMPI_MCA_io=romio321  # for HDF5 [4]
