# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-26 in stored copies that may be older.
# ABCI 3.0, AIST: whole nodes with eight H200 of 141 GB (rt_HF). PBS.
#
#   NODES=4 WALLTIME=24:00:00 jobscripts/submit.sh jobscripts/machines/abci3/rt_hf.sh -P <group> -- input.deck
#
# Sources, in [] below: AIST's user guide, https://docs.abci.ai/v3/en, read in https://github.com/aistabci/abci-docs
# (95081db of 2026-01-30, v3/en/docs/):
#   [1] job-execution.md: -P is mandatory; resource type rt_HF has 192 CPUs, eight GPUs and 1920 GB, 1 to 128 nodes, at
#       most 168 h and 21504 node-hours; -l select=<nodes>:mpiprocs=<ranks of a node>; the default time is 1 h
#   [2] system-overview.md: two Xeon 8558 (96 cores), eight NDR (200 Gb/s) InfiniBand adapters a node
#   [3] environment-modules.md: cuda/12.6/12.6.1; mpi.md: hpcx/2.20 (Open MPI 4.1.7), hostfile $PBS_NODEFILE
# Not found: what AIST says on NCCL variables, UCX and HDF5; NCCL finds InfiniBand by itself. ABCI-Q's
# system H has other queues.
# Build: -DNANOTRON_ARCH=sapphirerapids (emeraldrapids where the compiler has it); the CUDA architecture is 90.

submit="qsub"
site_options=(-q rt_HF -l "select=${NODES:-2}:ncpus=192:mpiprocs=8" -l "walltime=${WALLTIME:-24:00:00}")  # [1]

# shellcheck source=/dev/null
if ! command -v module > /dev/null; then source /etc/profile; fi
module load cuda hpcx || return 1  # [3]; names and versions: module avail

RANKS_PER_NODE=8
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7  # every rank sees all GPUs of its node (doc/install.md)
