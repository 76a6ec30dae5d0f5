#!/usr/bin/env bash
# Builds and tests in another release of Debian: a folder made by debootstrap with a clone of this one's HEAD. Needs root. The
# folder is kept: its packages are loaded once.
#
#   tests/debian.sh [--suite <name>] [--folder <folder>] [--hip <source of Kokkos>] [-- <command> [<argument>...]]
#
#   --suite    trixie, sid, ... (trixie)
#   --folder   (build/debian-<suite>)
#   --hip      builds the preset hip for MI250X instead, with a Kokkos of this source (4.6 or newer), warnings as errors
#   command    in the clone, instead of the README's two
#
# Exit code of the command (1 for 71); 64: wrong options; 71: no such folder can be made here.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
suite=trixie folder="" kokkos="" command=(bash -c "jobscripts/quickstart.sh && tests/run.sh")
say() { printf '%s\n' "debian: $*"; }
usage_error() {
  say "$1" >&2
  sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 64
}
cannot() {
  say "$1" >&2
  exit 71
}
while [ $# -gt 0 ]; do
  case "$1" in
    --suite | --folder | --hip)
      if [ $# = 1 ]; then usage_error "$1 needs a value"; fi
      case "$1" in
        --suite) suite="$2" ;;
        --folder) folder="$2" ;;
        --hip) kokkos="$(realpath -e "$2")" || usage_error "no folder $2" ;;
      esac
      shift
      ;;
    --) shift; command=("$@"); break ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) usage_error "unknown option '$1'" ;;
  esac
  shift
done
case "$suite" in "" | */*) usage_error "'$suite' is no release of Debian" ;; esac
folder="$(realpath -m "${folder:-$root/build/debian-$suite}")"

if [ "$(id -u)" != 0 ] || ! command -v debootstrap > /dev/null; then
  cannot "needs root and debootstrap (jobscripts/install_dependencies.sh --debootstrap)"
fi
unshare --mount mount --bind /proc /mnt || cannot "this machine lets root mount nothing (a container?)"
git -C "$root" rev-parse --quiet --verify HEAD > /dev/null || cannot "$root is no clone that git reads"
if [ ! -e "$folder/.nanotron_complete" ]; then
  if [ -n "$(ls -A "$folder" 2> /dev/null)" ] && [ ! -e "$folder/.nanotron" ]; then
    usage_error "$folder exists and is not of this script"
  fi
  say "making $folder ($suite)"
  rm -rf --one-file-system "$folder"
  mkdir -p "$folder"
  touch "$folder/.nanotron"
  unshare --mount debootstrap --include=git,ca-certificates "$suite" "$folder" > "$folder.log" 2>&1 || {
    tail -5 "$folder.log" >&2
    cannot "debootstrap failed ($folder.log)"
  }
  # A mirror may be a snapshot, older than its index says.
  echo 'Acquire::Check-Valid-Until "false";' > "$folder/etc/apt/apt.conf.d/nanotron"
  touch "$folder/.nanotron_complete"
fi
rm -rf "$folder/root/nanotron_hpc"
git clone --quiet "$root" "$folder/root/nanotron_hpc"
git -C "$root" diff --quiet HEAD || say "changes that are not committed are left out"
cp /etc/resolv.conf "$folder/etc/resolv.conf"

# inside <command> [<argument>...]: in the clone, with mounts of its own, which end with it.
inside() {
  local mounts kept=() name
  for name in NANOTRON_SEED http_proxy https_proxy no_proxy PIP_INDEX_URL PIP_CERT; do
    if [ -n "${!name:-}" ]; then kept+=("$name=${!name}"); fi
  done
  # shellcheck disable=SC2016
  mounts='for place in proc dev sys; do mount --rbind "/$place" "$0/$place" || exit; done; exec chroot "$0" "$@"'
  unshare --mount bash -c "$mounts" "$folder" env -i -C /root/nanotron_hpc HOME=/root LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${kept[@]}" "$@"
}
if [ -n "$(ls -A /usr/local/share/ca-certificates 2> /dev/null)" ]; then  # of a site's proxy
  cp -r /usr/local/share/ca-certificates/. "$folder/usr/local/share/ca-certificates/"
  inside update-ca-certificates > /dev/null 2>&1
fi
# Packages of today, of sid too.
inside bash -c 'apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 dist-upgrade -y > /dev/null' ||
  say "no newer packages can be loaded"

if [ -n "$kokkos" ]; then
  rm -rf "$folder/root/kokkos" && cp -r "$kokkos" "$folder/root/kokkos" && rm -rf "$folder/root/kokkos/build"
  cat > "$folder/root/hip.sh" << 'END'
set -euo pipefail
jobscripts/install_dependencies.sh
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends hipcc clang-17 rocm-device-libs-17 \
  libamdhip64-dev librocblas-dev librccl-dev > /dev/null
source jobscripts/environment.sh
if [ ! -e ~/kokkos-hip/.complete ]; then
  cmake -S ~/kokkos -B ~/kokkos/build -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=20 -DCMAKE_CXX_COMPILER=hipcc \
    -DKokkos_ENABLE_HIP=ON -DKokkos_ENABLE_SERIAL=ON -DKokkos_ARCH_AMD_GFX90A=ON -DKokkos_ENABLE_ROCTHRUST=OFF \
    -DCMAKE_INSTALL_PREFIX="$HOME/kokkos-hip"
  cmake --build ~/kokkos/build --target install
  touch ~/kokkos-hip/.complete
fi
cmake --preset hip -DKokkos_ROOT="$HOME/kokkos-hip" -DNANOTRON_UNITY=ON -DNANOTRON_WARNINGS_AS_ERRORS=ON
cmake --build --preset hip
build/hip/bin/nanotron_hpc --build-info
END
  command=(bash /root/hip.sh)
fi

status=0
inside "${command[@]}" || status=$?
if [ "$status" = 71 ]; then status=1; fi
exit "$status"
