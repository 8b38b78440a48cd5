"""The archive: closed requests as partitioned Parquet, for as long as you like.

    ARCHIVE/archive.json            what this directory is
    ARCHIVE/lock                    allows one archiver at a time (flock); it holds the process id
    ARCHIVE/manifest/F-L.json       an entry for each range of numbers: its files, their rows, bytes and checksums
    ARCHIVE/pending.json            the range that is being archived
    ARCHIVE/staging/                its files while they are written
    ARCHIVE/data/date=…/closed-F-L-N.parquet
    ARCHIVE/audit/                  acts of users

The manifest is the truth: a file that it does not name is not part of the archive, and a file beyond it means that the
manifest is damaged. The ranges cover the numbers of the ring from 1 on without holes. Start reading at archiver.py.
"""

from titanic_data.archive.archiver import Archiver, Queue, Summary
from titanic_data.archive.engines import ENGINES, Engine, PyArrowEngine, SparkEngine, archive_frame
from titanic_data.archive.maintenance import compact, rebuild_manifest, restore_range, vacuum
from titanic_data.archive.manifest import Archive, Entry, Fault, File, verify

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
