"""A PostgreSQL with a synchronous standby: what is committed is at both. It fails over, and is made whole again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from support.postgres import PASSWORD, USER, PostgresServer, program, run
from support.waiting import until

_NAME = "standby"


class Pair:
    """`primary` and `standby`, which change their places. Each keeps its port, so `url` is right for ever."""

    def __init__(
        self, primary: PostgresServer, standby: PostgresServer, way: Callable[[PostgresServer], int] | None = None
    ) -> None:
        """`way`: the port by which the other of the two reaches one; its own unless given."""
        self.primary = primary
        self.standby = standby
        self._way = way or (lambda server: server.port)
        self._ports = (primary.port, standby.port)
        self._settings = {id(server): dict(server.settings) for server in (primary, standby)}
        self.follow()

    def url(self, database: str = USER) -> str:
        """How to reach a database at whichever of the two is the primary, by TCP."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"postgresql://{USER}:{quote(PASSWORD)}@{hosts}/{database}?target_session_attrs=read-write"

    def follow(self) -> None:
        """Make the standby anew, a copy of the primary, and have the primary's commits wait for it."""
        standby, primary = self.standby, self.primary
        standby.stop("kill")
        shutil.rmtree(standby.data, ignore_errors=True)
        reach = ("-h", str(primary.folder), "-p", str(primary.port), "-U", "postgres")
        run(program("pg_basebackup"), "-D", standby.data, *reach, "-c", "fast", "-X", "stream", "--no-sync")
        source = f"host=127.0.0.1 port={self._way(primary)} user=postgres application_name={_NAME}"
        standby.settings = self._settings[id(standby)] | {"primary_conninfo": source}
        standby.configure()
        (standby.data / "standby.signal").touch(0o644)
        standby.start()
        primary.reload(synchronous_standby_names=_NAME)
        primary.sql("CHECKPOINT")  # it is the checkpointer's copy of the setting that makes commits wait
        behind = primary.sql("SELECT pg_current_wal_insert_lsn()::text")
        there = "SELECT true FROM pg_stat_replication WHERE sync_state = 'sync' AND flush_lsn >= %s::pg_lsn"
        until(lambda: primary.sql(there, behind))

    def fence(self) -> None:
        """The primary is gone, at once and for good, before another one takes its place."""
        self.primary.stop("kill")

    def promote(self, *, isolated: bool = False) -> None:
        """The standby is the primary from now on, and has none of its own. The old one must be fenced: it is dead, or
        `isolated`, so that nobody reaches it until `follow` has ended it."""
        assert isolated or not self.primary.running
        new, old = self.standby, self.primary
        new.sql("SELECT pg_promote(true, 60)")
        new.settings = dict(self._settings[id(new)])
        new.configure()  # without the one it followed, also after a restart
        self.primary, self.standby = new, old

    def fail_over(self) -> None:
        """The primary dies, the standby takes its place."""
        self.fence()
        self.promote()


@contextmanager
def new_pair() -> Iterator[Pair]:
    """Two servers, both running."""
    with PostgresServer() as primary, PostgresServer() as standby:
        yield Pair(primary.create(), standby)
