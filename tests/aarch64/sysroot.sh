#!/usr/bin/env bash
# Makes a sysroot of the distribution's arm64 packages, from the apt sources of this Debian or Ubuntu machine, to cross-compile
# for aarch64 (preset aarch64) and to run the result under qemu. Nothing of the machine itself is changed: apt gets a state and
# a cache of its own in the folder, packages are unpacked and not installed. Fast if the folder is complete.
#
#   tests/aarch64/sysroot.sh [folder]       (build/sysroot-aarch64; NANOTRON_SYSROOT)
#
# Needs the cross compiler and qemu on the machine: jobscripts/install_dependencies.sh --aarch64.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
sysroot="${1:-${NANOTRON_SYSROOT:-$root/build/sysroot-aarch64}}"
say() { printf '%s\n' "sysroot: $*"; }

# Those of install_dependencies.sh that are linked or included, and mpirun.
packages=(libc6-dev libstdc++-12-dev libopenblas-dev libdnnl-dev libcli11-dev libfmt-dev nlohmann-json3-dev libxxhash-dev
  libopenmpi-dev openmpi-bin libhdf5-openmpi-dev libgtest-dev)
made_of="${packages[*]}, 1"  # the number: of the steps below
if [ "$(cat "$sysroot/.complete" 2> /dev/null)" = "$made_of" ]; then
  say "$sysroot is complete"
  exit 0
fi
mkdir -p "$sysroot"
sysroot="$(cd "$sysroot" && pwd)"
own="$sysroot/.apt"
rm -f "$sysroot/.complete"
mkdir -p "$own/state/lists/partial" "$own/cache/archives/partial"
: > "$own/status"  # no package is installed: apt finds all that these need

of_arm() {
  local command="$1"
  shift
  "$command" -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$own/state" \
    -o Dir::State::status="$own/status" -o Dir::Cache="$own/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User=root "$@"
}

{
  of_arm apt-get update || say "apt-get update failed; trying with the lists at hand"
  kokkos=libkokkos-dev  # part of Trilinos in older distributions
  of_arm apt-cache show "$kokkos" > /dev/null 2>&1 || kokkos=libtrilinos-kokkos-dev
  of_arm apt-get install -y --download-only --no-install-recommends "${packages[@]}" "$kokkos"
} > "$own/log" 2>&1 || {
  tail -5 "$own/log" >&2
  say "apt-get could not load the packages ($own/log)" >&2
  exit 71
}
for package in "$own"/cache/archives/*.deb; do dpkg -x "$package" "$sysroot"; done
rm -rf "$own/cache" "$own/state"

# What the packages' scripts would link: one of several BLAS, MPI.
cd "$sysroot/usr/lib/aarch64-linux-gnu"
for name in libopenblas.so libopenblas.so.0 libopenblas.a libblas.so libblas.so.3 liblapack.so liblapack.so.3; do
  if [ -e "openblas-pthread/$name" ]; then ln -sfn "openblas-pthread/$name" "$name"; fi
done
ln -sfn openmpi/lib/libmpi.so libmpi.so
cd "$sysroot/usr/include/aarch64-linux-gnu"
for header in openblas-pthread/*.h; do ln -sfn "$header" "${header##*/}"; done
ln -sfn "../../lib/aarch64-linux-gnu/openmpi/include" mpi
ln -sfn mpirun.openmpi "$sysroot/usr/bin/mpirun"
ln -sfn mpiexec.openmpi "$sysroot/usr/bin/mpiexec"
# The compiler would look for absolute links on this machine.
find "$sysroot" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
  target="$sysroot$(readlink "$link")"
  if [ -e "$target" ]; then ln -sfnr "$target" "$link"; fi
done

printf '%s' "$made_of" > "$sysroot/.complete"
say "$sysroot: $(du -sh "$sysroot" | cut -f1) of arm64 packages"
