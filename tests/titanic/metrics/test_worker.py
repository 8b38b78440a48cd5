"""What Prometheus sees of `titanic work` and `titanic worker`, and what they say of their health."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.cli_titanic import Running, here, running
from support.ports import free_port
from support.scraping import Samples, ask, samples
from support.waiting import PATIENCE, until

from broker import Delivery
from titanic import Client, Server
from titanic.metrics import worker as worker_module
from titanic.metrics.worker import WorkerMetrics

APP = """
import os
from pathlib import Path

from titanic import Retry
from titanic.tasks import Tasks

app = Tasks(name="shop")


@app.task
def square(n: int) -> int:
    return n * n


@app.task
def fail() -> None:
    raise LookupError("no")


@app.task
def later(folder: str) -> None:
    if not Path(folder, "again").exists():
        Path(folder, "again").touch()
        raise Retry(after=0.01, count=False)


@app.task
def die(folder: str) -> None:
    if not Path(folder, "died").exists():
        Path(folder, "died").touch()
        os.kill(os.getpid(), 9)
"""


def metrics_of(worker: Running) -> str:
    return worker.says(r"metrics at (\S+)/metrics")[1]


def attempts(found: Samples) -> dict[tuple[str, str], float]:
    """How many, by service and outcome."""
    each = {name: re.fullmatch(r'titanic_worker_attempts_total{outcome="(.*)",service="(.*)"}', name) for name in found}
    return {(match[2], match[1]): found[name] for name, match in each.items() if match}


def test_a_command(tmp_path: Path) -> None:
    """It succeeds, it fails; while it runs it is in hand; and when the server goes, that is to be seen."""
    port = free_port()
    serve = ("serve", "--bind", f"tcp://127.0.0.1:{port}", "--store", tmp_path / "store")
    endpoint = ("--endpoint", f"tcp://127.0.0.1:{port}")
    script = f"read word; touch {tmp_path}/$word; while [ -e {tmp_path}/wait ]; do sleep 0.05; done; [ $word = good ]"
    (tmp_path / "wait").touch()
    with running(tmp_path / "serve.log", *serve) as server:
        server.says("serving at")
        options = ("--jobs", "3", "--metrics", "127.0.0.1:0")
        with running(tmp_path / "work.log", "work", "judge", *endpoint, *options, "--", "sh", "-c", script) as worker:
            base = metrics_of(worker)
            until(lambda: ask(f"{base}/readyz") == (200, "ok\n"))
            assert here("submit", "judge", "good\n", *endpoint).code == 0
            assert here("submit", "judge", "bad\n", "--max-attempts", "1", *endpoint).code == 0
            until(lambda: (tmp_path / "good").exists() and (tmp_path / "bad").exists())
            found = samples(base)
            assert found['titanic_worker_running{service="judge"}'] == 2
            assert (found["titanic_worker_slots"], found["titanic_worker_ready"]) == (3, 1)
            assert found["titanic_worker_reconnects_total"] == 0
            assert found["process_open_fds"] > 3
            assert "titanic_ready" not in found
            assert "titanic_worker_processes" not in found
            (tmp_path / "wait").unlink()
            expected = {("judge", "succeeded"): 1, ("judge", "failed"): 1}
            until(lambda: attempts(samples(base)) == expected)
            found = samples(base)
            assert 'titanic_worker_running{service="judge"}' not in found
            assert found['titanic_worker_run_seconds_bucket{le="+Inf",service="judge"}'] == 2
            assert 0 < found['titanic_worker_run_seconds_sum{service="judge"}'] < 2 * PATIENCE
            server.kill()
            until(lambda: samples(base)["titanic_worker_reconnects_total"] == 1)
            assert ask(f"{base}/readyz") == (503, "it is not registered with a broker\n")
            assert ask(f"{base}/healthz") == (200, "ok\n")
            found = samples(base)
            assert (found["titanic_worker_slots"], found["titanic_worker_ready"]) == (0, 0)
            with running(tmp_path / "again.log", *serve):
                until(lambda: ask(f"{base}/readyz") == (200, "ok\n"))
                assert samples(base)["titanic_worker_slots"] == 3
            worker.send(signal.SIGTERM)
            assert worker.ends() == 0


def test_a_pool(server: Server, client: Client, tmp_path: Path) -> None:
    (tmp_path / "metrics_shop.py").write_text(APP)
    options = ("--endpoint", server.endpoints[0], "--processes", "2", "--metrics", "127.0.0.1:0")
    with running(tmp_path / "log", "worker", "metrics_shop:app", *options, PYTHONPATH=str(tmp_path)) as worker:
        base = metrics_of(worker)
        uuids = [
            client.submit("shop.square", '{"args": [7]}'),
            client.submit("shop.later", f'{{"args": ["{tmp_path}"]}}'),
            client.submit("shop.die", f'{{"args": ["{tmp_path}"]}}', retry_first=0.01),
        ]
        failed = client.submit("shop.fail", "{}", max_attempts=2, retry_first=0.01)
        for uuid in uuids:
            client.wait(uuid, PATIENCE)
        until(lambda: client.show(failed)["state"] == "failed")
        expected = {
            ("shop.square", "succeeded"): 1,
            ("shop.later", "returned"): 1,
            ("shop.later", "succeeded"): 1,
            ("shop.die", "died"): 1,
            ("shop.die", "succeeded"): 1,
            ("shop.fail", "failed"): 2,
        }
        until(lambda: attempts(samples(base)) == expected)
        found = until(lambda: (now := samples(base)).get("titanic_worker_slots") == 2 and now)
        assert found["titanic_worker_processes"] == 2
        assert found["titanic_worker_processes_died_total"] == 1
        assert until(lambda: samples(base)["titanic_worker_processes_memory_bytes"]) > 1 << 20
        assert found['titanic_worker_run_seconds_count{service="shop.die"}'] == 2
        assert found['titanic_worker_run_seconds_count{service="shop.later"}'] == 1


def test_other_machines_may_read_them_only_if_that_is_allowed() -> None:
    done = here("work", "s", "--metrics", ":0", "--", "cat")
    assert (done.code, "other machines could read them" in done.err) == (2, True)
    assert "--open" in done.err


def test_a_loop_that_hangs_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = WorkerMetrics()
    assert metrics.unhealthy() == ""
    metrics._beat()
    assert metrics.unhealthy() == ""
    monkeypatch.setattr(worker_module, "LATE", -1.0)
    assert metrics.unhealthy().startswith("stuck for")
    assert metrics.unready() == metrics.unhealthy()


def test_an_upgrade_takes_the_address_over(server: Server, tmp_path: Path) -> None:
    """The old worker still has a request; its metrics are no longer served."""
    where = f"127.0.0.1:{free_port()}"
    options = ("work", "slow", "--endpoint", server.endpoints[0], "--metrics", where, "--", "sh", "-c")
    script = f"touch {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    with running(tmp_path / "old.log", *options, script) as old:
        base = metrics_of(old)
        assert here("submit", "slow", "x", "--endpoint", server.endpoints[0]).code == 0
        until((tmp_path / "begun").exists)
        with running(tmp_path / "new.log", *options, "true") as new:
            new.says("Address already in use; .*trying again until it is free")
            assert samples(base)['titanic_worker_running{service="slow"}'] == 1
            old.send(signal.SIGTERM)
            metrics_of(new)
            until(lambda: ask(f"{base}/readyz") == (200, "ok\n"))
            assert 'titanic_worker_running{service="slow"}' not in samples(base)
            (tmp_path / "go").touch()
            assert old.ends() == 0


def test_metrics_can_be_read_at_any_moment_of_the_first_request_of_a_service() -> None:
    metrics, delivery, reads = WorkerMetrics(), Delivery(b"", service=b"mail"), 0

    def read(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal reads
        if frame.f_code.co_name != "ended":
            return None
        reads += bool(list(metrics.collect()))
        return read

    metrics.begun(delivery)
    before = sys.gettrace()
    sys.settrace(read)
    try:
        metrics.ended(delivery, [b"ok"], "succeeded")
    finally:
        sys.settrace(before)
    assert reads > 3
    run = next(one for one in metrics.collect() if one.name == "titanic_worker_run_seconds")
    assert [sample.value for sample in run.samples if sample.name.endswith("_count")] == [1]
