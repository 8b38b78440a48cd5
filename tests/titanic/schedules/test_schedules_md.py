"""The examples of SCHEDULES.md, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from support.waiting import PATIENCE

from titanic import Client, Server
from titanic.cli import main
from titanic.schedules import Schedule
from titanic.schedules.schedule_file import KEYS, read_schedules
from titanic.schedules.scheduler import submit_now

PAGE = (Path(__file__).parents[3] / "titanic/SCHEDULES.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_file(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "schedules.toml").write_text(text)
    nightly, news = read_schedules(tmp_path / "schedules.toml")
    assert (nightly.when, nightly.missed) == ("30 2 * * * Europe/Berlin", "once")
    assert (news.when, news.options) == ("every 300 s", {"ttl": 300, "max_attempts": 3})
    assert list(news.frames) == ["https://example.org/news"]


def test_the_help_explains_every_key() -> None:
    command = main.get_command(None, "cron")
    assert [key for key in KEYS if not re.search(rf"\b{key}\b", command.help)] == []


def test_python(server: Server, client: Client) -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    for block in blocks("python"):
        exec(compile(block, "SCHEDULES.md", "exec"), names)
    app = names["app"]
    app.endpoint = server.endpoints[0]
    report, poll = app.schedules
    assert (report.name, report.when, report.missed) == ("shop.report", "0 7 * * MON-FRI Europe/Berlin", "once")
    assert (poll.name, poll.when, poll.options) == ("shop.poll", "every 300 s", {"ttl": 300, "keep": 3600.0})
    assert app.scheduler().once() == []
    uuid = submit_now(client, report)
    with app.worker() as worker:
        assert client.wait(uuid, PATIENCE) == [b"null"]
    assert worker is not None


def test_a_key_names_its_tick() -> None:
    assert Schedule("shop.poll", "x", every=300).key(1_795_377_900) in PAGE
