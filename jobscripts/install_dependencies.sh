#!/usr/bin/env bash
# Installs the packages that the build needs on Debian or Ubuntu, or prints the command for an
# administrator. Fast if all are installed.
#
#   jobscripts/install_dependencies.sh [--mpi openmpi|mpich|both] [--tests] [--aarch64] [--debootstrap]
#
#   --mpi           which MPI, with its parallel HDF5 (openmpi)
#   --tests         also the packages of the test suite
#   --aarch64       also the cross compiler and qemu of the preset aarch64, for tests/aarch64/sysroot.sh
#   --debootstrap   also debootstrap, for tests/debian.sh
#
# Exit code 71 if a package is missing and cannot be installed.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
mpi=openmpi
tests=0
others=()

say() { printf '%s\n' "install_dependencies: $*"; }

usage_error() {
  say "$1" >&2
  sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 64
}

while [ $# -gt 0 ]; do
  case "$1" in
    --mpi) mpi="${2:-}"; shift ;;
    --tests) tests=1 ;;
    --aarch64) others+=(g++-aarch64-linux-gnu qemu-user-static) ;;
    --debootstrap) others+=(debootstrap) ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) usage_error "unknown option '$1'" ;;
  esac
  shift
done

packages=(git ca-certificates cmake g++ make ninja-build pkg-config libopenblas-dev libdnnl-dev
  libcli11-dev libfmt-dev nlohmann-json3-dev libxxhash-dev
  python3 python3-venv python3-numpy python3-h5py python3-matplotlib python3-xxhash
  python3-yaml)
case "$mpi" in
  openmpi) packages+=(libopenmpi-dev openmpi-bin libhdf5-openmpi-dev) ;;
  mpich) packages+=(libmpich-dev mpich libhdf5-mpich-dev) ;;
  both) packages+=(libopenmpi-dev openmpi-bin libhdf5-openmpi-dev
    libmpich-dev mpich libhdf5-mpich-dev) ;;
  *) usage_error "--mpi is openmpi, mpich or both, not '$mpi'" ;;
esac
if [ "$tests" = 1 ]; then
  packages+=(ccache clang-format libgtest-dev gfortran mandoc python3-pytest shellcheck slurm-wlm munge iproute2 zsh
    environment-modules)
fi
packages+=("${others[@]}")

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null)" = installed ]
}

# Kokkos is libkokkos-dev where the distribution has it, part of Trilinos in the older ones.
kokkos_package() {
  if is_installed libkokkos-dev || apt-cache show libkokkos-dev > /dev/null 2>&1; then
    echo libkokkos-dev
  else
    echo libtrilinos-kokkos-dev
  fi
}

find_missing() {
  missing=()
  local package
  for package in "${packages[@]}"; do is_installed "$package" || missing+=("$package"); done
  if ! is_installed libtrilinos-kokkos-dev && ! is_installed libkokkos-dev; then
    missing+=("$(kokkos_package)")
  fi
  if [ "$tests" = 1 ]; then
    # Ubuntu has the first as a snap only; without it the test of the site's tables is skipped. Without the second, the headers of
    # HIP (with what it depends on 18 MB to load, 80 MB installed), .ci/run leaves the emulated AMD GPU out.
    for package in chromium libamdhip64-dev; do
      if ! is_installed "$package" && apt-cache show "$package" > /dev/null 2>&1; then missing+=("$package"); fi
    done
  fi
}

# True if CMake finds every library elsewhere (modules, Spack, a private installation), and the tests find gfortran.
configures_without_packages() {
  command -v cmake > /dev/null || return 1
  if [ "$tests" = 1 ]; then command -v gfortran > /dev/null || return 1; fi
  local probe="$root/build/dependency_probe" status=0
  mkdir -p "$probe"
  cmake -S "$root" -B "$probe" -DNANOTRON_BUILD_TESTS="$([ "$tests" = 1 ] && echo ON || echo OFF)" \
    > "$probe/log" 2>&1 || status=1
  if [ "$status" = 0 ]; then rm -rf "$probe"; fi
  return "$status"
}

install_packages() {
  find_missing
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if command -v sudo > /dev/null && sudo -n true 2> /dev/null; then as_root=(sudo -n); else
      if configures_without_packages; then
        say "not installed as packages, but CMake finds all libraries: ${missing[*]}"
        return
      fi
      say "these packages are missing and cannot be installed without root: ${missing[*]}" >&2
      say "ask an administrator to run:" >&2
      printf '\n    apt-get update && apt-get install --no-install-recommends %s\n\n' \
        "${missing[*]}" >&2
      say "or provide the libraries by modules or Spack (doc/install.md, spack.yaml)" >&2
      exit 71
    fi
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get -qq update || say "apt-get update failed; trying with the lists at hand"
  find_missing
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y \
    --no-install-recommends "${missing[@]}" > /dev/null || {
    say "apt-get could not install: ${missing[*]}" >&2
    exit 71
  }
}

# Packages that Debian 12 does not have:
#   tokenizers                            Hugging Face tokenizers and --train-bpe
#   safetensors, tensorboard, pyarrow, jinja2, backports.zstd   tests of the tools
#   mkdocs                                the documents as a site (Debian has an older version)
#   nbclient ... f90nml                   notebooks and examples of the documents
#   ruff, mypy                            checks of the tools
install_python_packages() {
  local extra=(tokenizers)
  if [ "$tests" = 1 ]; then
    extra+=(safetensors tensorboard pyarrow jinja2 mkdocs nbclient ipykernel xarray h5netcdf f90nml ruff mypy)
  fi
  local venv="$root/build/venv" base=/usr/bin/python3
  [ -x "$base" ] || base="$(command -v python3)"
  if [ "$tests" = 1 ] && "$base" -c 'import sys; sys.exit(sys.version_info >= (3, 14))'; then
    extra+=(backports.zstd)  # later ones have compression.zstd
  fi
  local names="${extra[*]}"
  if "$base" -c 'import numpy, sys; sys.exit(numpy.__version__ >= "2")' 2> /dev/null; then
    extra=("${extra[@]/pyarrow/pyarrow<20}")  # later ones need NumPy 2
  fi
  extra=("${extra[@]/mkdocs/mkdocs>=1.6,<2}")
  extra=("${extra[@]/ruff/ruff<0.18}") extra=("${extra[@]/mypy/mypy<2.5}")  # later ones have other rules
  if [ "$tests" = 1 ]; then extra+=("matplotlib-inline<0.2"); fi  # later ones need matplotlib 3.7
  # h5py and matplotlib of Debian are built for its NumPy: no other package may bring a newer one.
  local numpy
  numpy="$("$base" -c 'import numpy; print(numpy.__version__)' 2> /dev/null)" && extra+=("numpy==$numpy")
  if [ -x "$venv/bin/python" ] &&
    "$venv/bin/python" -c "import numpy, h5py, ${names// /, }" 2> /dev/null; then
    return
  fi
  say "making the Python environment build/venv ($names)"
  mkdir -p "$root/build"
  if ! { "$base" -m venv --system-site-packages "$venv" &&
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 \
      --timeout 15 "${extra[@]}"; }
  then
    say "pip could not install: $names. Training does not need them; Hugging Face tokenizers" \
      "(tokenizers), the tests of tools/, the site of the documents and its notebooks (the others) do" >&2
  fi
}

if command -v dpkg-query > /dev/null && command -v apt-get > /dev/null; then
  install_packages
else
  say "not a Debian or Ubuntu machine: CMake will say what is missing (doc/install.md, spack.yaml)"
fi
install_python_packages
say "all packages are installed (MPI: $mpi)"
