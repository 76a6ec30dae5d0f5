# shellcheck shell=bash disable=SC2034
# NEVER RUN ON THIS MACHINE: written from documents, read on 2026-11-23 in stored copies that may be older.
# MareNostrum 5 GPP, BSC: CPU nodes, a rank per core. Slurm.
#
#   jobscripts/submit.sh jobscripts/machines/marenostrum5/gpp.sh --account=<project> --nodes=4 -- input.deck
#
# BSC's pages (https://www.bsc.es/supportkc/docs/MareNostrum5/overview and .../slurm) could not be read. Sources,
# public repositories that quote or use them, whose names the search does not give:
#   [1] what users have published of these pages: two 8480+ (112 cores) and 256 GB a node, 2 GB a core for jobs;
#       account and QOS must be given; gp_ehpc up to 800 nodes and 72 h, gp_debug 32 nodes and 2 h
#   [2] job scripts and module lines of users: partition gpp, gcc, ucx and openmpi
# Scratch, accounts and what was not found: as in acc.sh.
# Build: -DNANOTRON_ARCH=sapphirerapids, which has AMX for bf16.

submit=sbatch
site_options=(--partition=gpp --qos=gp_ehpc --nodes=2 --ntasks-per-node=112 --cpus-per-task=1)  # [1, 2]

module load gcc ucx openmpi cmake || return 1  # names [2]; add the versions you built with, and HDF5 for this MPI

MPI_TYPE="${MPI_TYPE:-default}"
