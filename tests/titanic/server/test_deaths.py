"""Workers that die with requests in hand: a death alone is an attempt, and of several requests none is charged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.processes import worker_process
from support.waiting import until

from titanic import Client, RequestFailed, Server

pytestmark = pytest.mark.settings(retry_first=0.1, retry_most=0.2)


def run_until_ended(server: Server, client: Client, log: Path, uuids: list[str]) -> int:
    """Start a worker process after the other, until all requests have ended; how many of them died."""
    died = 0
    while True:
        with worker_process(server.endpoints[0], "echo", log, "poison") as worker:
            until(lambda: not worker.running or all(client.show(uuid)["finished_at"] for uuid in uuids))
            if worker.running:
                return died
            died += 1


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_death_is_an_attempt(server: Server, client: Client, tmp_path: Path, attempts: int) -> None:
    """It had been executed three times for each, and `attempt` said 1 each time."""
    log = tmp_path / "log"
    with worker_process(server.endpoints[0], "echo", log, "poison"):
        until(lambda: server.workers == {b"echo": 4})
        uuids = [client.submit("echo", body) for body in ("1", "2", "3")]
        uuids.append(client.submit("echo", "poison", max_attempts=attempts))
        until(lambda: log.exists() and log.read_text().count("\n") == 4)
    assert run_until_ended(server, client, log, uuids) == attempts, "and the one above"
    with pytest.raises(RequestFailed, match="the worker died while processing the request"):
        client.reply(uuids[-1])
    assert client.show(uuids[-1])["attempts"] == attempts
    for uuid, body in zip(uuids[:3], (b"1", b"2", b"3"), strict=True):
        assert client.reply(uuid) == [b"done:" + body]
        assert client.show(uuid)["attempts"] == 1
    lines = log.read_text().splitlines()
    poisoned = [line for line in lines if line.startswith("poison")]
    assert poisoned == ["poison 1 1", *(f"poison {n} {n + 1}" for n in range(1, attempts + 1))]
    innocent = Counter(line.split()[0] for line in lines if line not in poisoned)
    assert innocent == {"1": 2, "2": 2, "3": 2}
