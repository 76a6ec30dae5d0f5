# shellcheck shell=bash
# Sourced by the programs of a bundle (tests/gpu.sh --bundle): where their libraries are.
#
# MPI, HDF5 and the CUDA runtime are in lib/. The driver, cuBLAS, NCCL, cuDNN and NVRTC are the machine's: those of
# LD_LIBRARY_PATH, CUDA_HOME, CUDNN_ROOT, /usr/local/cuda*, the system's folders or the packages nvidia-* of python3. In place
# of one that is nowhere comes lib/absent/<name>: it names the library and ends the program when that calls it, which --help,
# --version, --check and --plan do not. cuDNN and NVRTC (lib/opened) are opened when they are first needed; without them
# attention runs on slower kernels.
# Sets NANOTRON_LIBRARY_PATH, NANOTRON_MISSING, the names of those of lib/absent that are nowhere, and NANOTRON_NOT_OPENED,
# of those of lib/opened.
nanotron_bundle="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export OPAL_PREFIX="$nanotron_bundle" PMIX_LIBDIR="$nanotron_bundle/pmix/lib" PMIX_DATADIR="$nanotron_bundle/pmix/share"
export NANOTRON_TEST_DIR="$nanotron_bundle/tests"
# Without ssh Open MPI starts nothing at all unless it is told to stay on this machine.
if ! command -v ssh >/dev/null && ! command -v rsh >/dev/null && ! command -v srun >/dev/null; then
  export OMPI_MCA_plm=isolated
fi

nanotron_machine_folders() {
  printf '%s\n' "${LD_LIBRARY_PATH:-}" | tr ':' '\n'
  printf '%s\n' "${CUDA_HOME:-/usr/local/cuda}"/lib64 ${CUDNN_ROOT:+"$CUDNN_ROOT/lib"} /usr/local/cuda*/lib64 /usr/local/nvidia/lib64
  PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | sed -n 's|.* => \(.*\)/[^/]*$|\1|p' | sort -u || true
  python3 -c 'import sys, glob
for folder in sys.path: print("\n".join(glob.glob(folder + "/nvidia/*/lib")))' 2>/dev/null || true
}

nanotron_find_libraries() {
  local folders folder name found path="$nanotron_bundle/lib"
  folders="$(nanotron_machine_folders)"
  NANOTRON_MISSING='' NANOTRON_NOT_OPENED=''
  while IFS= read -r name; do
    found=
    while IFS= read -r folder; do
      if [ -n "$folder" ] && [ -e "$folder/$name" ]; then
        found="$folder"
        break
      fi
    done <<<"$folders"
    if [ -z "$found" ] && [ -e "$nanotron_bundle/lib/absent/$name" ]; then
      NANOTRON_MISSING+="${NANOTRON_MISSING:+ }$name"
      found="$nanotron_bundle/lib/absent/$name"
    elif [ -z "$found" ]; then
      NANOTRON_NOT_OPENED+="${NANOTRON_NOT_OPENED:+ }$name"
      continue
    fi
    case ":$path:" in *":$found:"*) ;; *) path+=":$found" ;; esac
  done < <(ls "$nanotron_bundle/lib/absent" && cat "$nanotron_bundle/lib/opened")
  export NANOTRON_MISSING NANOTRON_NOT_OPENED NANOTRON_LIBRARY_PATH="$path"
}
[ -n "${NANOTRON_LIBRARY_PATH:-}" ] || nanotron_find_libraries
