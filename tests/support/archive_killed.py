"""Archives a ring, and kills itself when it reaches a point for the n-th time: archive_killed.py STORE ARCHIVE ENDPOINT
ENGINE POINT N. Prints a line and goes on to the end when the point does not come."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from titanic_data.archive import Archive, Archiver, Engine, PyArrowEngine, Queue, SparkEngine
from titanic_data.session import session


def main() -> None:
    store, path, endpoint, engine_name, point, count = sys.argv[1:]
    left = int(count)

    def reached(name: str) -> None:
        nonlocal left
        left -= name == point
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    engine: Engine = PyArrowEngine()
    rows = 60 if engine_name == "pyarrow" else 4000  # Spark takes as long for few as for many
    if engine_name == "spark":
        engine = SparkEngine(session("killed", quick=True, settings={"spark.master": "local[2]"}))
    Archiver(Archive.create(Path(path)), Queue(Path(store), endpoint), engine, rows=rows, reached=reached).run()
    print("done")


if __name__ == "__main__":
    main()
