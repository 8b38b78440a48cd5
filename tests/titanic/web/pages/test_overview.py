"""The overview and the store."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import asdict
from threading import Event
from typing import Any

import httpx
import pytest
from markupsafe import Markup
from support.cli_titanic import here
from support.lived import Lived
from support.pages import Page
from support.serving import QUICK
from support.waiting import PATIENCE, until

from broker import Worker
from titanic import Client, Server
from titanic.facts import counts
from titanic.facts.recorder import HOURS, U32, AttemptEnd, packed
from titanic.web.pages import overview
from titanic.web.pages.overview import assess
from titanic.web.pages.services import ServiceRow
from titanic.web.stats import StatsSample


def test_an_empty_queue_says_what_to_do(http: httpx.Client) -> None:
    page = Page(http.get("/").text)
    assert page.title == "Overview · Titanic"
    assert page.headings == ["Overview", "Health", "Now", "Last hour, by minute", "Requests per second",
                             "Unfinished requests", "Wait", "Run", "Services", "Keyboard shortcuts"]  # fmt: skip
    assert "Healthy" in page.text
    assert "No services yet" in page.text
    assert "titanic submit SERVICE BODY" in page.text


def test_waiting_requests_and_workers(http: httpx.Client, client: Client, echo: Worker) -> None:
    client.submit_batch("mail", [b"x"] * 1234)
    client.submit("mail", b"x", delay=3600)
    client.wait(client.submit("echo", b"x"), 30)
    page = Page(http.get("/").text)
    assert page.figures["Waiting"].startswith("1,234 oldest: ")
    assert page.figures["Delayed"] == "1"
    assert page.figures["Ended"].startswith("1 ")
    assert "No workers: mail (1,234 waiting)" in page.text
    rows = {row[0]: [row[1], row[4]] for row in page.rows}
    assert rows == {"mail": ["1,234", "none"], "echo": ["0", "2"]}


def test_running_requests_are_not_taken_off_those_that_wait(http: httpx.Client, server: Server, client: Client) -> None:
    release = Event()

    def work(frames: list[bytes]) -> list[bytes]:
        release.wait(PATIENCE)
        return frames

    with Worker("slow", work, server.endpoints[0], config=QUICK):
        try:
            client.submit("slow", b"x")
            until(lambda: client.stats()["running"] == 1)
            client.submit_batch("mail", [b"x"] * 5)
            figures = Page(http.get("/").text).figures
        finally:
            release.set()
    assert figures["Waiting"].startswith("5 oldest: ")
    assert figures["Running"] == "1"


@pytest.mark.settings(max_attempts=1)
def test_failing_services_come_first_and_need_attention(http: httpx.Client, client: Client, echo: Worker) -> None:
    client.submit_batch("mail", [b"x"] * 3)
    uuids = client.submit_batch("echo", [b"fail"] * 7)
    until(lambda: all(client.show(uuid)["state"] == "failed" for uuid in uuids))
    page = Page(http.get("/").text)
    assert [[row[0], row[5]] for row in page.rows] == [["echo", "failing 7"], ["mail", "0"]]
    assert "Failing in the last 15 minutes: echo (7 failed, 0 done)." in page.text
    assert page.links["Show the errors"] == "/failures?span=hour&service=echo"
    assert "as you wish" in http.get(page.links["7"]).text


def test_a_service_that_became_slow_needs_attention(http: httpx.Client, server: Server) -> None:
    """Where its times are shown, and for the doctor, although no request waits. It is new: half of what it did is slow,
    which is not usual for that."""
    now_us = server.store.now_us()
    tally = [0] * counts.SIZE
    tally[counts.SUCCEEDED] = tally[counts.RUN + counts.bucket(0.02)] = 100
    (row,) = counts.encode({b"mail": tally, b"echo": tally})
    with server.store.write() as transaction:
        hour = now_us // 3_600_000_000 * 3600
        transaction.put_facts([(HOURS + packed(hour) + U32.pack(7) + b"\0", row)])
    ends = [
        AttemptEnd(bytes(16), name, counts.SUCCEEDED, 0.0, run, "") for name, run in ((b"mail", 2.0), (b"echo", 0.02))
    ]
    server.writer.facts.attempts(ends * 100, now_us)
    where = "--endpoint", server.endpoints[0], "--timeout", "30"
    page = Page(http.get("/").text)
    assert "Running longer than usual: mail (1.4 s, usually 14 ms). See what the tasks are waiting for." in page.text
    found = here("doctor", "--json", *where)
    (text,) = [one["text"] for one in found.json["checks"] if one["check"] == "run times"]
    assert text == "longer than usual: mail (1.4 s, usually 14 ms)"
    assert found.code == 1
    services = here("services", *where).out.decode()
    assert re.findall(r"^(\w+) .*  (\S+ m?s, usually 14 ms)$", services, re.M) == [
        ("echo", "14 ms, usually 14 ms"),
        ("mail", "1.4 s, usually 14 ms"),
    ]
    assert services.endswith("\nmail: runs longer than usual; see what the tasks are waiting for\n")
    with Worker("mail", lambda frames: frames, server.endpoints[0]), Worker("echo", list, server.endpoints[0]):
        listed = [("mail", "1.4 s, 1.9 s (usually 14 ms)"), ("echo", "14 ms, 19 ms (usually 14 ms)")]
        until(lambda: [(row[0], row[5]) for row in Page(http.get("/services?sort=-run").text).rows] == listed)
        assert "1.4 s, usually 14 ms. See what the tasks are waiting for." in Page(http.get("/services/mail").text).text
        assert "Running longer" not in Page(http.get("/services/echo").text).text


def sampled(**stats: Any) -> StatsSample:
    known = {"disk_full": False, "accepting": True, "store": {"capacity": 100, "used": 1, "path": "/s"}}
    return StatsSample(time.time(), known | stats, {}, 0.1)


@pytest.mark.parametrize(
    ("stats", "text"),
    [
        ({"disk_full": True, "disk_free": 3 << 19}, "The disk of the store in /s is full. 1.5 MiB is free on it. New"),
        ({"disk_full": True, "disk_free": None}, "The store in /s was deleted. The server still has the deleted file"),
        ({"accepting": False}, "The store is full"),
        ({"refuses_for_room": True}, "The store is full"),
    ],
)
def test_a_full_store_is_critical(stats: dict[str, Any], text: str) -> None:
    level, (problem,), *_ = assess(sampled(**stats), (), {}, {})
    assert level == "critical"
    assert Markup.escape(text) in problem
    assert 'href="/store"' in problem


def test_problems_lead_to_their_services() -> None:
    old = int((time.time() - 300) * 1e6)
    services = [
        ServiceRow("a&b", waiting=5, running=4, workers=4, oldest=old),
        ServiceRow("pdf", waiting=1, paused=True),
        ServiceRow("mail", waiting=2, workers=0),
        ServiceRow("quick", waiting=5, running=3, workers=4, oldest=old),
        ServiceRow("kept", waiting=3, running=3, workers=4, oldest=old, limits={"running": 3}),
        ServiceRow("went on", waiting=1, running=4, workers=4, oldest=old),
    ]
    rows = {one.name: asdict(one) for one in services}
    rows["went on"]["resumed_at"] = int(time.time() * 1e6)
    usual: Any = {"wait": {"p50": 0.01, "p90": 0.1, "p99": 1.0}}
    nodes: Any = [{"name": "node-a", "lease": 9.0}, {"name": "node-b", "lease": None, "claims": 2}]
    level, problems, *_ = assess(sampled(by_service=rows), services, {}, dict.fromkeys(rows, usual), (), nodes)
    assert level == "warning"
    slower = "Slower than usual, with all workers busy or the limit reached"
    assert [re.sub("<[^>]*>", "", one).partition(". Start")[0] for one in problems] == [
        "Nodes that stopped without a clean shutdown: node-b (2 requests claimed)",
        "No workers: mail (2 waiting)",
        "Paused with requests waiting: pdf (1 waiting).",
        f"{slower}: a&amp;b (5 waiting). Add workers, or slots (--jobs).",
        f"{slower}: kept (3 waiting). Raise its limit of running requests: titanic limits SERVICE --running N.",
    ]
    for problem, name in zip(problems[1:], ("mail", "pdf", "a%26b", "kept"), strict=True):
        assert f'href="/services/{name}"' in problem


def test_of_many_services_three_are_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each viewer's page costs no more with a thousand of them."""
    linked = list[Any]()
    link = overview._link
    monkeypatch.setattr(overview, "_link", lambda named: linked.append(named) or link(named))
    services = [ServiceRow(f"s{n}", waiting=n, workers=0) for n in range(1, 1001)]
    _, (problem,), *_ = assess(sampled(), services, {}, {})
    assert re.sub("<[^>]*>", "", problem).startswith(
        "No workers: s1000 (1,000 waiting), s999 (999 waiting), s998 (998 waiting) and 997 others."
    )
    assert len(linked) == 3


def test_a_poisonous_request_needs_attention(http: httpx.Client, lived: Lived) -> None:
    lived.failed("no poison: it is well")
    uuid = lived.failed("poison: 3 workers died")
    text = http.get("/").text
    assert f"Poisoned requests (they killed their workers): echo ({uuid[-8:]}). Delete them" in Page(text).text
    assert f'href="/requests/{uuid}"' in text


def test_names_are_escaped(http: httpx.Client, client: Client) -> None:
    client.submit("<script>alert(1)</script>", b"")
    text = http.get("/").text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert 'href="/services/%3Cscript%3Ealert%281%29%3C/script%3E"' in text


def test_the_store(http: httpx.Client, client: Client) -> None:
    client.submit_batch("mail", [b"x"] * 5)
    found = Page(http.get("/store").text)
    assert found.figures["Requests"].startswith("5")
    assert found.figures["Used"].endswith("of 64.0 MiB")
    assert found.rows[0][:4] == ["mail", "5", "0", "0"]
    assert found.links["5"] == "/requests?service=mail&order=oldest"
    assert "0" not in found.links
    assert found.figures["Durability"].startswith("synced Acknowledged requests are on disk")
    assert "No archive is registered" in found.text
    assert "titanic backup /backup/titanic --store /" in found.text


def test_the_lag_of_an_archive(http: httpx.Client, client: Client) -> None:
    client.archive(register=True, archive=uuid.uuid4().hex, name="reports")
    client.close(*client.submit_batch("mail", [b"x"] * 3))
    found = Page(http.get("/store").text)
    assert found.figures["Name"] == "reports"
    assert found.figures["Lag"] == "3"


def test_pages_without_content_say_why(http: httpx.Client) -> None:
    assert "No refusals." in Page(http.get("/audit?show=refusals").text).text
    assert "Retry" not in Page(http.get("/nothing").text).links


def test_without_access_control_there_are_no_users(http: httpx.Client) -> None:
    found = Page(http.get("/users").text)
    assert "Access control is off." in found.text
    assert "titanic web --access FILE --keys DIR" in found.text
