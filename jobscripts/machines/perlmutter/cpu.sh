# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-23 in stored copies that may be older.
# Perlmutter, NERSC: CPU nodes, a rank per core. Slurm.
#
#   jobscripts/submit.sh jobscripts/machines/perlmutter/cpu.sh --account=<project> --nodes=4 -- input.deck
#
# Sources, in [] below:
#   [1] https://docs.nersc.gov/beginner-guide/nodetypesfig: two EPYC 7763 (128 cores) and 512 GB
#   [2] https://docs.nersc.gov/jobs/policy/ and [3] https://docs.nersc.gov/filesystems/perlmutter-scratch/: as in
#       gpu.sh
#   [4] https://github.com/AMReX-Astro/workflow (sphinx_docs/source/nersc-workflow.rst), not NERSC's: 256 hardware
#       threads a node, so 256 / ranks CPUs per task, and a thread for each core only
#   [5] https://github.com/BLAST-WarpX/warpx (1b312c6, perlmutter_cpu.sbatch), not NERSC's: constraint, srun without
#       --mpi
# Build: -DNANOTRON_ARCH=znver3.

submit=sbatch
site_options=(--constraint=cpu --qos=regular --nodes=2 --ntasks-per-node=128 --cpus-per-task=2
  --threads-per-core=2)  # [4, 5]

module load PrgEnv-gnu cray-hdf5-parallel cmake || return 1  # as on the GPU nodes

MPI_TYPE="${MPI_TYPE:-default}"  # [5]
export OMP_NUM_THREADS=1  # [4]
