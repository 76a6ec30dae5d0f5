#!/usr/bin/env bash
# A program for Arm with bf16 starts on a processor that has all instruction sets of qemu, and on an old one ends with 71 and
# says what is missing.
#
#   test_processor.sh <program> <sysroot>
set -euo pipefail
program="$1" sysroot="$2"
qemu-aarch64-static -cpu max -L "$sysroot" "$program" --version
status=0
said="$(qemu-aarch64-static -cpu cortex-a57 -L "$sysroot" "$program" --version 2>&1)" || status=$?
if [ "$status" != 71 ]; then echo "on a Cortex-A57 it ends with $status, not 71: $said"; exit 1; fi
case "$said" in
  *"a processor without "*" bf16"*NANOTRON_ARCH*) echo "processor: 71, and what is missing" ;;
  *) echo "what is missing is not said: $said"; exit 1 ;;
esac
