# shellcheck shell=bash
# Sourced by the scripts of this project: sets what the build and the programs need on a plain
# machine. A variable that is already set is left alone; a job script of a site needs none of it.

_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# Debian's Python and its packages; the environment in build/venv adds tokenizers (and safetensors for
# the tests).
if [ -z "${NANOTRON_PYTHON:-}" ]; then
  NANOTRON_PYTHON="$(command -v /usr/bin/python3 || command -v python3 || true)"
  if [ -x "$_root/build/venv/bin/python" ]; then NANOTRON_PYTHON="$_root/build/venv/bin/python"; fi
fi
export NANOTRON_PYTHON

# Ninja if it is installed (a build folder keeps its generator), all cores.
if [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja > /dev/null; then export CMAKE_GENERATOR=Ninja; fi
# (nproc obeys OMP_NUM_THREADS.)
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(env -u OMP_NUM_THREADS nproc)}"

# One MPI rank per core, one thread per rank, unless the user has set something else.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-$OMP_NUM_THREADS}"

# Open MPI: start as root (containers), and more ranks than cores. From version 5 on its launcher has other names.
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy:-:oversubscribe}"

unset _root
