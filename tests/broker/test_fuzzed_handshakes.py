"""Handshakes that are none, at a server with access control: nobody gets in, nobody else notices, nothing is left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.access_files import AccessFiles
from support.cli_titanic import serving
from support.good_traffic import good_traffic
from support.handshakes import Handshakes, Malformed, record
from support.torture import LONG, SEED, figures, tally
from support.waiting import until

from broker.io.curve import credentials
from titanic.bench.stage import cpu_seconds, memory_bytes

HANDSHAKES = 250_000 if LONG else 2000
WARM = HANDSHAKES // 5
MOST_GROWTH = 16 << 20
"""Bytes of memory that a server may have more, after four times as many handshakes as it had before."""


@pytest.mark.torture(short=True)
@pytest.mark.parametrize("seed", range(SEED, SEED + 4) if LONG else [SEED])
def test_malformed_handshakes(tmp_path: Path, seed: int) -> None:
    files = AccessFiles(tmp_path / "access")
    with serving(tmp_path, *files.options) as (server, endpoint), good_traffic(endpoint, files) as good:
        pid = server.process.pid
        message = [b"MDPC02", b"\1", b"mmi.service", b"echo"]
        recorded = record(endpoint, credentials(files.secret("alice"), files.server_key), message)
        before = until(lambda: descriptors(pid))
        handshakes = Handshakes(endpoint, iter(Malformed(recorded, seed)))
        handshakes.run(WARM)
        calls, memory, cpu, start = good.calls, memory_bytes(pid) or 0, cpu_seconds(pid) or 0.0, time.monotonic()
        handshakes.run(HANDSHAKES - WARM)
        seconds, used = time.monotonic() - start, (cpu_seconds(pid) or 0.0) - cpu
        beside = good.calls - calls
        handshakes.close()
        assert handshakes.let_in == []
        assert handshakes.welcomed > HANDSHAKES / 20, "hardly any came as far as to an INITIATE"
        assert beside > 0
        until(lambda: descriptors(pid) <= before)
        assert (memory_bytes(pid) or 0) < memory + MOST_GROWTH
        good.go_on()
        assert "Traceback" not in server.log.read_text()
    tally["malformed handshakes"] += HANDSHAKES
    figures.append(
        f"malformed handshakes: {(HANDSHAKES - WARM) / seconds:,.0f} a second beside {beside / seconds:,.0f} calls, the"
        f" slowest of which took {good.slowest * 1000:.0f} ms; with them {used / (HANDSHAKES - WARM) * 1e6:.0f} µs of"
        " the server's processor time each"
    )


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
