#!/usr/bin/env bash
# bin/<program> of a bundle: the program of that name in libexec/, with its libraries and none of them for others.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=environment.sh disable=SC1091
source "$here/environment.sh"
LD_LIBRARY_PATH="$NANOTRON_LIBRARY_PATH" exec "$here/libexec/${0##*/}" "$@"
