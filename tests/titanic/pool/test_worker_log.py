"""What a worker's terminal shows of jobs: failures at once, and users' own lines with the job that they are about."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from support.cli_titanic import running
from support.waiting import until

from broker import DELIVERY, Delivery
from titanic import Client, JobLogFilter, Server
from titanic.logs.output import Text

APP = """
import logging

from titanic import Failed
from titanic.tasks import Tasks

app = Tasks(name="shop")
logging.getLogger("shop").info("imported")


@app.task
def typo(name: str) -> str:
    logging.getLogger("shop").info("about %s", name)
    return name.uper()


@app.task(fatal=LookupError)
def find(name: str) -> str:
    raise LookupError(name)


@app.task
def give_up() -> None:
    raise Failed("410 Gone")
"""


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_failure_is_seen_at_the_first_attempt(server: Server, client: Client, tmp_path: Path, format: str) -> None:
    (tmp_path / "log_shop.py").write_text(APP)
    with running(
        *(tmp_path / "log", "worker", "log_shop:app", "--endpoint", server.endpoints[0], "--log-format", format),
        PYTHONPATH=str(tmp_path),
    ) as worker:
        uuid = client.submit("shop.typo", '{"args": ["it"]}', max_attempts=2, retry_first=0.1)
        worker.says(
            rf"shop.typo failed \({uuid}, attempt 1 of 2\): AttributeError: .*; tried again in 100 ms \(2 of 2\)"
        )
        worker.says("return name.uper")
        worker.says(rf"shop.typo failed \({uuid}, attempt 2 of 2\): .*; that was the last attempt")
        fatal = client.submit("shop.find", '{"args": ["it"]}')
        worker.says(r"LookupError: it; not tried again")
        until(lambda: client.show(fatal)["state"] == "failed")
        assert (client.show(uuid)["attempts"], client.show(fatal)["attempts"]) == (2, 1)
        client.submit("shop.give_up", "{}")
        worker.says(r"410 Gone; not tried again")
        lines = worker.log.read_text().splitlines()
    if format == "json":
        own = [said for line in lines if line.startswith("{") and (said := json.loads(line))["logger"] == "shop"]
        jobs = [(said["uuid"], said["task"], said["attempt"]) for said in own if "uuid" in said]
        assert jobs == [(uuid, "shop.typo", "1"), (uuid, "shop.typo", "2")]
        assert {"task", "attempt"}.isdisjoint(own[0])
    else:
        assert [line.partition("shop: ")[2] for line in lines if " shop: " in line] == [
            "imported",
            f"about it (shop.typo {uuid}, attempt 1)",
            f"about it (shop.typo {uuid}, attempt 2)",
        ]


def test_an_endpoint_other_than_that_of_the_app_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "log_shop.py").write_text(APP.replace("Tasks(", 'Tasks("tcp://queue.example:5555", '))
    here = server.endpoints[0]
    with running(tmp_path / "log", "worker", "log_shop:app", "--endpoint", here, PYTHONPATH=str(tmp_path)) as worker:
        worker.says(rf"the app names the endpoint tcp://queue.example:5555, .*; this worker uses {here}")


def test_the_filter_in_a_log_of_the_users_own() -> None:
    job = Delivery(b'{"uuid": "01a1ff29e82d7a2da099783c4f481113", "attempt": 3, "of": 5}', service=b"shop.resize")
    line = logging.LogRecord("shop", logging.INFO, "shop.py", 1, "%s", ("begins",), None)
    format = Text("%(message)s [%(task)s %(uuid)s %(attempt)s]")
    outside = logging.LogRecord("shop", logging.INFO, "shop.py", 1, "idle", (), None)
    counted = logging.makeLogRecord({"msg": "more like this", "counted": True})
    token = DELIVERY.set(job)
    try:
        assert JobLogFilter().filter(line)
        assert JobLogFilter().filter(counted)
    finally:
        DELIVERY.reset(token)
    assert JobLogFilter().filter(outside)
    assert format.format(line).startswith("begins [shop.resize 01a1ff29e82d7a2da099783c4f481113 3]")
    assert format.format(outside) == "idle [  ]"
    assert format.format(counted) == "more like this [  ]"
