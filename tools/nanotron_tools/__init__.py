"""The tools of nanotron_hpc: text to tokens, models of others, and what is in the files of a run.

This file and the scripts of tools/ are read by Python 3.6 too, which many sites have as python3, to be told.
"""

import os
import sys

__version__ = "0.1.0"  # that of the program (CMakeLists.txt)

if sys.version_info < (3, 9):
    sys.stderr.write("%s: error: expected Python 3.9 or later, found %s (%s): load or name another one\n" % (
        os.path.basename(sys.argv[0]), sys.version.split()[0], sys.executable))
    sys.exit(71)

# Files of a running job may be read, and parallel file systems often have no locks. h5py takes this when it is loaded.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
