#!/usr/bin/env python3
# ranks: 2
# timeout: 3600
# labels: long
"""test_kills.py with 150 kills."""
import os
import runpy
from pathlib import Path

os.environ.setdefault("NANOTRON_KILLS", "150")
runpy.run_path(str(Path(__file__).with_name("test_kills.py")))
