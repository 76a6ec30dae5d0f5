#!/usr/bin/env bash
# tests/gpu.sh --bundle: a folder that runs on a bare machine with a driver, from a CUDA build.
#
#   bundle.sh <folder> <build folder, or nothing: build here> [<option of cmake>...]
set -euo pipefail
folder="$1" build="$2"
shift 2
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
limit_mib=50
programs=(nanotron_hpc nanotron_bench nanotron_generate nanotron_gpu_tests)
all_programs=nanotron_gpu_programs  # which is the one that it is called as

fail() {
  printf 'tests/gpu.sh --bundle: %s\n' "$*" >&2
  exit 1
}
for tool in cc strip nm readelf ldd ompi_info; do
  command -v "$tool" >/dev/null || fail "$tool was not found (Debian: binutils, gcc, openmpi-bin)"
done
for tool in orterun orted; do
  command -v "$tool" >/dev/null || fail "$tool was not found: bundles have the launcher of Open MPI 4"
done
if [ -e "$folder" ]; then fail "$folder is there already"; fi

if [ -z "$build" ]; then
  build="$root/build/gpu-bundle"
  # Machine code of kernels is mostly their long names: packed it is an eighth.
  packed=-Xfatbin=-compress-all
  if "${CUDACXX:-/usr/local/cuda/bin/nvcc}" --help | grep -q -e --compress-mode; then packed=--compress-mode=size; fi
  # Code of the host is three quarters of a program, and nothing that a GPU waits for: only what is called stays, and of -Os,
  # which nvcc does not know; its host compiler gets it.
  mkdir -p "$build"
  printf '#!/bin/sh\nexec "%s" "$@" -Os\n' "${NVCC_WRAPPER_DEFAULT_COMPILER:-g++}" >"$build/g++"
  chmod +x "$build/g++"
  (cd "$root" && cmake --preset cuda -B "$build" -DNANOTRON_ARCH=portable -DCMAKE_REQUIRE_FIND_PACKAGE_NanotronCudnn=ON \
    -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG -ffunction-sections -fdata-sections" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--gc-sections "$@")
  NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:+$NVCC_APPEND_FLAGS }$packed" NVCC_WRAPPER_DEFAULT_COMPILER="$build/g++" \
    cmake --build "$build" --target "$all_programs"
fi
[ -x "$build/bin/$all_programs" ] || fail "$build/bin/$all_programs is not built: target $all_programs"

case "$(exec -a nanotron_hpc "$build/bin/$all_programs" --build-info | sed -n 's/^cudnn: //p')" in
  none* | "") fail "$build is built without cuDNN's fused attention: give CUDNN_ROOT and CUDNN_FRONTEND_ROOT (doc/install.md)" ;;
esac

mkdir -p "$folder"/{bin,libexec,lib/absent,input,tests/gpu,tests/benchmarks}
folder="$(cd "$folder" && pwd)"
cp "$root"/input/*.deck "$folder/input/"
cp -R "$root/input/machines" "$folder/input/"
cp -R "$root/tests/golden" "$folder/tests/"
rm -r "$folder/tests/golden"/{configs,*.py}
cp "$root/tests/gpu.sh" "$folder/tests/"
cp "$root"/tests/gpu/{report,correctness,speed,profile}.sh "$folder/tests/gpu/"
cp "$root/tests/benchmarks/pytorch_step.py" "$folder/tests/benchmarks/"
cp "$root/tests/gpu/environment.sh" "$root/LICENSE" "$folder/"
cp "$root/tests/gpu/start.sh" "$folder/bin/start.sh"
strip -o "$folder/libexec/$all_programs" "$build/bin/$all_programs"
for program in "${programs[@]}"; do ln -s "$all_programs" "$folder/libexec/$program"; done

# Open MPI -----------------------------------------------------------------------------------------
case "$(mpiexec --version 2>/dev/null)" in *"Open MPI"* | *OpenRTE*) ;; *) fail "mpiexec is not Open MPI's" ;; esac
mpi_path() { ompi_info --parsable --path "$1" | sed -n "s/^path:$1://p"; }
prefix="$(mpi_path prefix)"
plugins="$(mpi_path pkglibdir)"
cp "$(command -v orterun)" "$folder/libexec/mpiexec"
cp "$(command -v orted)" "$folder/libexec/orted"
in_bundle() { printf '%s/%s\n' "$folder" "${1#"$prefix"/}"; }  # where OPAL_PREFIX makes Open MPI look
mkdir -p "$(in_bundle "$plugins")" "$(in_bundle "$(mpi_path pkgdatadir)")"
cp "$(mpi_path pkgdatadir)"/help-*.txt "$(in_bundle "$(mpi_path pkgdatadir)")/"
# Not carried: other networks than TCP and shared memory, OpenSHMEM, other runtimes.
find -L "$plugins" -name 'mca_*.so' |
  grep -vE 'ucx|ofi|openib|psm|flux|jsm|simulator|monitoring|memheap|scoll|spml|sshmem|atomic' |
  while IFS= read -r plugin; do cp -L "$plugin" "$(in_bundle "$plugins")/"; done
pmix="$(readlink -f "$(ldd "$(find "$plugins" -name 'mca_pmix_ext*.so')" | awk '/libpmix/ { print $3 }')")"
pmix="${pmix%/lib/*}"
mkdir -p "$folder/pmix/lib" "$folder/pmix/share"
cp -RL "$pmix/lib/pmix" "$folder/pmix/lib/"
cp -RL "$pmix/share/pmix" "$folder/pmix/share/"
for program in "$folder"/libexec/*; do ln -s start.sh "$folder/bin/${program##*/}"; done

# absent_library <file> <name> <hint> <version of the symbols, or nothing>: of the functions on stdin, one a line, each of
# which says that the library is not there and ends the program.
absent_library() {
  local file="$1" name="$2" hint="$3" version="$4" source="$folder/absent.c"
  printf '#include <stdio.h>\n#include <unistd.h>\n' >"$source"
  printf 'static void absent(void) { fputs("%s is not on this machine, or not where environment.sh looks: %s\\n", stderr); _exit(71); }\n' \
    "$name" "$hint" >>"$source"
  sed -E 's/@.*//; /GetVersion$/s/.*/long &(void) { return 0; }/; /;/!s/.*/void &(void) { absent(); }/' >>"$source"
  printf '%s { *; };\n' "$version" >"$folder/absent.map"
  cc -w -O1 -shared -fPIC -fno-builtin -s "-Wl,-soname,$name" ${version:+"-Wl,--version-script=$folder/absent.map"} \
    -o "$file" "$source"
  rm "$source" "$folder/absent.map"
}
undefined_symbols() { nm -D --undefined-only "$@" | awk '$1 == "U" { print $2 }' | sort -u; }
needed_libraries() { readelf -d "$@" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' | sort -u; }

# Libraries: all but glibc's and the machine's ------------------------------------------------------
# Debian's HDF5 reads from the web too, which nothing here does: half of all libraries are for that.
mapfile -t hdf5 < <(ldd "$folder/libexec/nanotron_hpc" | awk '/libhdf5/ { print $3 }')
for name in $(needed_libraries "${hdf5[@]}" | grep -E '^lib(curl|crypto)\.'); do
  case "$name" in libcurl*) of=CURL_OPENSSL_4 ;; *) of=OPENSSL_3.0.0 ;; esac
  undefined_symbols "${hdf5[@]}" | grep "@$of\$" |
    absent_library "$folder/lib/$name" "$name" "this HDF5 reads no files from the web" "$of"
done
# LAPACK, which only optimizer%name = 'soap' calls, is as large as all of these.
for name in $(needed_libraries "$folder/libexec/nanotron_hpc" | grep -E '^lib(openblas|lapack|blas)\.'); do
  undefined_symbols "$folder/libexec/nanotron_hpc" | grep -E '^d[a-z]{5}_$' |
    absent_library "$folder/lib/$name" "$name" "only optimizer%name = 'soap' needs it; a bundle has none" ""
done
from_machine='libcuda|libcublas|libcublasLt|libnccl|libcudnn[a-z_]*'
find "$folder/libexec" "$folder/pmix/lib" "$(in_bundle "$plugins")" -type f -print0 |
  LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" xargs -0 ldd 2>/dev/null |
  awk -v made="$folder/" '$3 ~ /^\// && index($3, made) != 1 { print $3 }' | sort -u |
  grep -vE "/(ld-linux[^/]*|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libnsl|libanl|$from_machine)\.so" |
  while IFS= read -r library; do
    cp -L "$library" "$folder/lib/"
    strip --strip-unneeded "$folder/lib/${library##*/}"
  done

symbols="$(undefined_symbols "$folder"/libexec/nanotron_*)"
for name in $(needed_libraries "$folder"/libexec/nanotron_* | grep -E "^($from_machine)\.so"); do
  case "$name" in
    libcuda.*) hint="it comes with the driver of the GPU" mine='^cu[A-Z][A-Za-z0-9_]*$' version= ;;
    libnccl.*) hint="load a module nccl, or: pip install nvidia-nccl-cu13" mine='^nccl' version= ;;
    *) hint="load a module cuda, or: pip install nvidia-cublas" mine="@$name\$" version="$name" ;;
  esac
  mkdir "$folder/lib/absent/$name"
  grep -E "$mine" <<<"$symbols" | absent_library "$folder/lib/absent/$name/$name" "$name" "$hint" "$version"
done

# What is opened only when it is first needed: fused attention, and the compiler that cuDNN asks for its kernels.
cuda_major="$(needed_libraries "$folder"/libexec/nanotron_* | sed -n 's/^libcublasLt\.so\.//p')"
printf '%s\n' libcudnn.so.9 "libnvrtc.so${cuda_major:+.$cuda_major}" >"$folder/lib/opened"

cat >"$folder/README" <<'TEXT'
Programs of nanotron_hpc for NVIDIA GPUs, with what they need besides a driver, cuBLAS, NCCL, cuDNN and NVRTC (of CUDA or
of Python's packages nvidia-*). Processor: x86-64-v3 or newer, on Arm any. Nothing is installed; the folder may be anywhere, and read-only.

  bin/nanotron_hpc --check input/qwen2_1b5.deck
  bin/mpiexec -n 8 bin/nanotron_hpc <deck>
  tests/gpu.sh correctness --out results       also: speed, experts, profile; --help
TEXT

find "$folder" -mindepth 1 -maxdepth 1 -print0 | xargs -0 du -sb | sort -rn |
  awk '{ n = split($2, part, "/"); printf "%8.1f MiB  %s\n", $1 / 1048576, part[n] }'
bytes="$(du -sb "$folder" | cut -f1)"
printf '%8.1f MiB  in all, of %s\n' "$(awk -v b="$bytes" 'BEGIN { print b / 1048576 }')" "$limit_mib"
[ "$bytes" -le $((limit_mib * 1048576)) ] || fail "$folder is larger than $limit_mib MiB"
