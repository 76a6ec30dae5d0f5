#!/usr/bin/env bash
# What mpiexec does with several commands, where it does: Open MPI 5 of Debian 13 ends with a segmentation fault
# (open-mpi/ompi, issue 13303).
#
#   mpiexec -n <all> each_rank.sh <ranks> <command> [, <ranks> <command>]...
set -euo pipefail
rank="${OMPI_COMM_WORLD_RANK:-${PMI_RANK:?no variable of this launcher has the rank}}"
while [ "$#" -gt 0 ]; do
  ranks="$1" command=()
  shift
  while [ "$#" -gt 0 ] && [ "$1" != , ]; do
    command+=("$1")
    shift
  done
  if [ "$rank" -lt "$ranks" ]; then exec "${command[@]}"; fi
  rank=$((rank - ranks))
  if [ "$#" -gt 0 ]; then shift; fi
done
echo "each_rank.sh: no command for a rank" >&2
exit 1
