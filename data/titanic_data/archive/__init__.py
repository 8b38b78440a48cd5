"""The archive: what was closed, as partitioned Parquet, for as long as one likes.

    ARCHIVE/archive.json            what this directory is
    ARCHIVE/lock                    one archiver at a time (flock); it says who
    ARCHIVE/manifest/F-L.json       an entry for each range of numbers: its files, their rows, bytes and checksums
    ARCHIVE/pending.json            the range that is being archived
    ARCHIVE/staging/                its files while they are written
    ARCHIVE/data/date=…/closed-F-L-N.parquet

The manifest is the truth: a file that it does not name is not part of the archive, and one that goes beyond it means
that it is damaged. Ranges tile the numbers of the ring from 1 on without gaps. Start reading at archiver.py.
"""

from titanic_data.archive.archiver import Archiver, Summary
from titanic_data.archive.engines import ENGINES, Engine, PyArrowEngine, SparkEngine
from titanic_data.archive.frame import archive_frame
from titanic_data.archive.manifest import Archive, Entry, File
from titanic_data.archive.queue import Queue
from titanic_data.archive.rebuild import rebuild_manifest
from titanic_data.archive.tidy import compact, restore_range, vacuum
from titanic_data.archive.verify import Fault, verify

__all__ = [
    "ENGINES",
    "Archive",
    "Archiver",
    "Engine",
    "Entry",
    "Fault",
    "File",
    "PyArrowEngine",
    "Queue",
    "SparkEngine",
    "Summary",
    "archive_frame",
    "compact",
    "rebuild_manifest",
    "restore_range",
    "vacuum",
    "verify",
]
