"""The tools of nanotron_hpc: text to tokens, models of others, and what is in the files of a run."""

import os

__version__ = "0.1.0"  # that of the program (CMakeLists.txt)

# Files of a running job may be read, and parallel file systems often have no locks. h5py takes this when it is loaded.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
