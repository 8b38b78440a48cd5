"""`python -m titanic.store DIR`: a check, for the process that started it (apart.py)."""

import sys
from pathlib import Path

from titanic.store.apart import main

main(Path(sys.argv[1]))
