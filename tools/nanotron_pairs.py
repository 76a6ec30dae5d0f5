#!/usr/bin/env python3
"""nanotron-pairs, of a checkout or an installed prefix: nothing has to be installed by pip."""

import sys

from nanotron_tools import commands

if __name__ == "__main__":
    sys.exit(commands.pairs())
