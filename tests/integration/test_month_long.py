#!/usr/bin/env python3
# ranks: 2
# timeout: 5400
# labels: long
"""A whole month, dense and in a sample of which goodput is measured: tests/simulated_month.py."""
import subprocess
import sys
from pathlib import Path

command = Path(__file__).resolve().parents[1] / "simulated_month.py"
sys.exit(subprocess.run([sys.executable, command, sys.argv[1]], check=False).returncode)
