#!/usr/bin/env bash
# Builds the libraries that clusters rarely have as modules, from their release archives, into one folder. No network is
# needed.
#
#   jobscripts/build_libraries.sh <folder of archives> <prefix> [<option of cmake>...]
#
# Archives, .tar.gz, .tar.xz or .zip, by the names of the projects' release pages or of Debian's source packages:
#   required: fmt-*, CLI11-*, json-*, xxHash-*
#   built if present: googletest-* (tests), kokkos-* (with the Serial backend), oneDNN-*
# Options of cmake apply to all libraries, such as -DCMAKE_CXX_COMPILER=g++-13 or -DKokkos_ENABLE_OPENMP=ON.
#
# Exit codes: 64 usage; 65 an archive is missing, given twice or damaged; 71 a library cannot be built.
set -euo pipefail

say() { printf '%s\n' "build_libraries: $*"; }

fail() {
  local code="$1"
  shift
  say "error: $*" >&2
  exit "$code"
}

if [ $# -lt 2 ] || [[ "$1" = -* ]]; then
  sed -n '5p' "${BASH_SOURCE[0]}" | sed 's/^# */usage: /' >&2
  exit 64
fi
archives="$1"
if [ ! -d "$archives" ]; then fail 64 "'$archives' is not a folder"; fi
if ! mkdir -p "$2"; then fail 71 "'$2' cannot be created"; fi
prefix="$(cd "$2" && pwd)"
shift 2
for tool in cmake tar; do command -v "$tool" >/dev/null || fail 71 "there is no $tool: load a module"; done

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# archive_of <name on the release page> <name of Debian's source package>: the one archive, or nothing
archive_of() {
  local found
  found="$(find -L "$archives" -maxdepth 1 -type f \( -iname "$1-*" -o -iname "$2_*.orig.*" \) \
    \( -name '*.tar.*' -o -name '*.tgz' -o -name '*.zip' \) ! -name '*.asc' ! -name '*.sig' | sort)"
  if [ "$(grep -c . <<<"$found")" -gt 1 ]; then
    fail 65 "more than one archive of $1, keep one: ${found//$'\n'/ }"
  fi
  printf '%s' "$found"
}

# unpack <archive> <folder>
unpack() {
  mkdir "$2"
  (cd "$2" && cmake -E tar xf "$1") >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    fail 65 "$1 cannot be unpacked: copy it again"
  }
}

# build <archive> <folder with its CMakeLists.txt, below the archive's own> <option of cmake>...
build() {
  local archive name="${1##*/}" source="$work/source" below="$2"
  archive="$(realpath "$1")"
  shift 2
  rm -rf "$source" "$work/build"
  unpack "$archive" "$source"
  source="$(find "$source" -mindepth 1 -maxdepth 1 -type d | head -n 1)/$below"
  if [ ! -f "$source/CMakeLists.txt" ]; then fail 65 "$archive has no $below/CMakeLists.txt: another release?"; fi
  say "$name"
  {
    cmake -S "$source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
      -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
      -DBUILD_SHARED_LIBS=OFF "$@" ${options[@]+"${options[@]}"} &&
      cmake --build "$work/build" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" --target install
  } >"$work/log" 2>&1 || {
    tail -n 40 "$work/log" >&2
    fail 71 "$name cannot be built: see the lines above"
  }
}
options=("$@")

# The names of these options in oneDNN 2.
dnnl_2="-DDNNL_BUILD_TESTS=OFF -DDNNL_BUILD_EXAMPLES=OFF"
# Of each library: name on the release page, Debian's name, folder of CMakeLists.txt, options.
required=("fmt fmtlib . -DFMT_TEST=OFF -DFMT_DOC=OFF"
  "CLI11 cli11 . -DCLI11_BUILD_TESTS=OFF -DCLI11_BUILD_EXAMPLES=OFF -DCLI11_BUILD_DOCS=OFF"
  "json nlohmann-json3 . -DJSON_BuildTests=OFF"
  "xxHash xxhash cmake_unofficial -DXXHASH_BUILD_XXHSUM=OFF")
optional=("googletest googletest . -DBUILD_GMOCK=OFF"
  "kokkos kokkos . -DCMAKE_CXX_STANDARD=20 -DKokkos_ENABLE_SERIAL=ON"
  "oneDNN onednn . -DONEDNN_BUILD_TESTS=OFF -DONEDNN_BUILD_EXAMPLES=OFF $dnnl_2")

missing=()
for library in "${required[@]}"; do
  read -r name debian _ <<<"$library"
  archive="$(archive_of "$name" "$debian")"
  if [ -z "$archive" ]; then missing+=("$name-<version>.tar.gz"); fi
done
if [ ${#missing[@]} -gt 0 ]; then fail 65 "missing in $archives: ${missing[*]}"; fi

for library in "${required[@]}" "${optional[@]}"; do
  read -r name debian below arguments <<<"$library"
  archive="$(archive_of "$name" "$debian")"
  if [ -z "$archive" ]; then
    say "no archive of $name: not built"
    continue
  fi
  read -r -a of_library <<<"$arguments"
  build "$archive" "$below" "${of_library[@]}"
done

say "done. Configure with"
printf '\n    cmake --preset release -DCMAKE_PREFIX_PATH=%s\n\n' "$prefix"
