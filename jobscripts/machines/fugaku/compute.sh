# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-26 in stored copies that may be older.
# Fugaku, RIKEN R-CCS: A64FX nodes with 48 cores in four CMGs (NUMA nodes) and 32 GiB, no GPUs: a rank per CMG with twelve
# threads. PJM.
#
#   NODES=12 WALLTIME=12:00:00 VOLUMES=/vol0004 CHECK_PROGRAM=$HOME/x86/bin/nanotron_hpc \
#     jobscripts/submit.sh jobscripts/machines/fugaku/compute.sh -g <group> -- input.deck
#
# CHECK_PROGRAM is a build for the login node; one of its own is needed where the login node is no A64FX.
#
# Sources, in [] below: RIKEN's user guides, https://www.r-ccs.riken.jp/fugaku/docs/user-guide (USE: sys-use/
# user-guide-use-1.49/build/en, IO: prog-guide/programing-guide-io/build/en)
#   [1] https://www.r-ccs.riken.jp/en/fugaku/about: 48 cores and 2 assistant cores, 4 CMGs, HBM2 of 32 GiB, Tofu D
#   [2] USE/JobExecution/BulkJob.html: -L node, rscgrp=small and elapse, --mpi max-proc-per-node=4, -g <group>,
#       -x PJM_LLIO_GFSCACHE=/vol000N; USE/JobExecution/StepJob.html: step jobs
#   [3] USE/UsageRules: the nodes of a job depend on the resource group; up to 384 nodes need no torus
#   [4] USE/LayeredStorageAndLLIO/OverView.html and TheSecondLayerStrage.html: /vol000N goes through a cache on SSDs (LLIO),
#       /2ndfs does not; what is not written back at the time limit is lost; files that the login node writes during a
#       job may not be visible in it through the cache
#   [5] job scripts of users, not RIKEN's: lang/tcsds-1.2.43 and older versions, OMP_NUM_THREADS=12 with four ranks,
#       small up to 384 nodes, above them large
# Run in /2ndfs/<group>: through the cache, STOP and SAVE of the login node may not reach the run, and a last checkpoint may
# be lost [4]. Read tokens from /vol000N.
# Not found: the longest job of a resource group; whether compute nodes can call pjsub (if not: pjm.sh, steps beforehand);
# a compiler for C++20 that goes with Fujitsu's MPI, and HDF5 for it; how mpiexec binds ranks to CMGs. The first lines of
# run.log show the binding.
# Build: -DNANOTRON_ARCH=armv8.2-a+sve, on a compute node or across.

submit="pjsub"
nodes="${NODES:-2}"
group=small
if [[ "$nodes" =~ ^[0-9]+$ ]] && [ "$nodes" -gt 384 ]; then group=large; fi  # [5]
site_options=(-L "node=$nodes" -L "rscgrp=${RESOURCE_GROUP:-$group}" -L "elapse=${WALLTIME:-12:00:00}"
  --mpi max-proc-per-node=4 -x "PJM_LLIO_GFSCACHE=${VOLUMES:-/vol0004}")  # [2]
if [ -n "${LANGUAGE_MODULE:-}" ]; then site_options+=(-x LANGUAGE_MODULE); fi  # sourced again in the job

# shellcheck source=/dev/null
if ! command -v module > /dev/null; then source /etc/profile; fi
module load "lang/${LANGUAGE_MODULE:-tcsds-1.2.43}" || return 1  # [5]; module avail lang

RANKS_PER_NODE=4
export OMP_NUM_THREADS=12  # [1]
export PLE_MPI_STD_EMPTYFILE=off  # no files of ranks that print nothing [5]
