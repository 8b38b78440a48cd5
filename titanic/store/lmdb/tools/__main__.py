"""`python -m titanic.store.lmdb.tools DIR`: a check, for the process that started it (check_process.py)."""

import sys
from pathlib import Path

from titanic.store.lmdb.tools.check_process import main

main(Path(sys.argv[1]))
