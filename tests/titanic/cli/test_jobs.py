"""What `titanic submit` can be told, and `titanic retry` and `purge`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_titanic import here, serving
from support.waiting import until

pytestmark = pytest.mark.usefixtures("workers")


@pytest.fixture
def at(endpoint: str) -> tuple[str, str]:
    return ("--endpoint", endpoint)


def show(uuid: str, at: tuple[str, str]) -> dict[str, object]:
    document: dict[str, object] = here("show", uuid, "--json", *at).json
    return document


def test_the_same_key_gets_the_same_uuid(at: tuple[str, str]) -> None:
    first = here("submit", "absent", "a", "--key", "order 7", *at).line
    assert here("submit", "absent", "b", "--key", "order 7", *at).line == first
    assert here("submit", "absent", "a", "--key", "order 8", *at).line != first
    assert show(first, at)["key"] == "order 7"
    assert "order 7" in here("show", first, *at).out.decode()


def test_a_request_expires(at: tuple[str, str]) -> None:
    uuid = here("submit", "absent", "x", "--ttl", "0.05", *at).line
    done = here("reply", uuid, "--wait", "20", *at)
    assert done.code == 1
    assert "expired" in done.err
    assert uuid in here("ls", "--state", "expired", *at).out.decode()


def test_a_request_is_delayed(at: tuple[str, str]) -> None:
    uuid = here("submit", "echo", "x", "--delay", "1000", *at).line
    shown = here("show", uuid, *at).out.decode()
    assert "delayed" in shown
    assert "not before" in shown
    assert here("submit", "echo", "x", "--delay", "0.05", "--wait", "20", *at).out == b"x"


def test_priority_and_attempts(at: tuple[str, str]) -> None:
    uuid = here("submit", "absent", "x", "--priority", "9", "--max-attempts", "3", *at).line
    row = show(uuid, at)
    assert (row["priority"], row["max_attempts"]) == (9, 3)
    assert here("submit", "absent", "x", "--priority", "10", *at).code == 2


def test_a_unique_request_is_found(at: tuple[str, str]) -> None:
    submit = ("submit", "absent", "x", "--unique", "order 7")
    uuid = here(*submit, *at).line
    found = here(*submit, *at)
    assert (found.line, "nothing was stored" in found.err) == (uuid, True)
    assert here(*submit, "--json", *at).json == {"uuid": uuid, "found": True}
    assert here(*submit, "--unique-for", "1h", *at).line != uuid
    assert show(uuid, at)["unique"] == "order 7"
    assert "order 7 (until done)" in here("show", uuid, *at).out.decode()
    for wrong in (("--unique-for", "1h", "--unique-until", "done"), ("--unique-until", "never"), ("--lines", "-")):
        assert here(*submit, *wrong, *at).code in (1, 2), wrong
    assert here("submit", "absent", "x", "--unique-for", "1h", *at).code in (1, 2)


def test_a_reply_is_kept_as_long_as_its_option_says(at: tuple[str, str]) -> None:
    assert here("submit", "echo", "x", "--keep", "never", "--wait", "20", *at).out == b"x"
    keep = "--keep", "90m", "--keep-failed", "2d", "--keep-body", "never"
    uuid = here("submit", "absent", "x", *keep, *at).line
    assert show(uuid, at)["options"] == {"keep": 5400, "keep_failed": 172_800}
    assert "keep         90 min" in (shown := here("show", uuid, *at).out.decode())
    assert "keep body    never" in shown
    uuid = here("submit", "absent", "x", "--keep-body", "1h", *at).line
    assert show(uuid, at)["options"] == {"keep_body": 3600}
    assert "keep body    60 min" in here("show", uuid, *at).out.decode()
    for wrong in ("-1", "0", "always", "nan"):
        assert here("submit", "echo", "x", "--keep", wrong, *at).code == 2
        assert here("submit", "echo", "x", "--keep-body", wrong, *at).code == 2


def test_options_count_for_each_line(at: tuple[str, str]) -> None:
    done = here("submit", "absent", "--lines", "-", "--priority", "2", *at, stdin=b"a\nb\n")
    assert [show(uuid, at)["priority"] for uuid in done.out.decode().split()] == [2, 2]
    assert here("submit", "absent", "--lines", "-", "--key", "k", *at).code == 2


def test_retry(at: tuple[str, str]) -> None:
    uuid = here("submit", "fail", "x", "--wait", "20", *at).err.split()[0]
    assert here("retry", uuid, *at) == (0, b"1 request requeued\n", "")
    until(lambda: show(uuid, at)["state"] == "failed")
    assert show(uuid, at)["attempts"] == 2
    assert here("retry", "--all", "--service", "fail", *at).out == b"1 request requeued\n"
    until(lambda: show(uuid, at)["state"] == "failed")
    assert here("retry", "--service", "fail", "--json", *at).json == {"retried": 1}
    assert here("retry", *at).code == 2
    assert here("retry", uuid, "--all", *at).code == 2
    assert here("retry", "nonsense", *at).code == 2


def test_why_nothing_is_tried_again(at: tuple[str, str]) -> None:
    waiting, unknown = here("submit", "absent", "x", *at).line, "0" * 32
    done = here("retry", unknown, *at)
    assert (done.code, done.out) == (4, b"0 requests requeued\n")
    assert f"unknown UUID {unknown}; it was closed, deleted after its retention time, or never accepted" in done.err
    done = here("retry", unknown, waiting, *at)
    assert (done.code, done.out) == (1, b"0 requests requeued\n")
    assert f"{waiting} is waiting; only failed and expired requests can be requeued" in done.err


def test_close_tells_programs_what_is_closed(at: tuple[str, str]) -> None:
    uuid = here("submit", "absent", "x", *at).line
    assert here("close", uuid.upper(), "--json", *at).json == {"uuids": [uuid]}


def test_purge(at: tuple[str, str]) -> None:
    lines = here("submit", "purge-test", "--lines", "-", *at, stdin=b"1\n2\n3\n").out.decode().split()
    assert here("purge", "--state", "done", "--service", "purge-test", *at).out == b"0 closed\n"
    assert (
        here("purge", "--state", "waiting", "--service", "purge-test", "--older-than", "1000", *at).out == b"0 closed\n"
    )
    assert here("purge", "--state", "waiting", "--service", "purge-test", "--json", *at).json == {"closed": 3}
    assert here("reply", lines[0], *at).code == 4
    assert here("purge", *at).code == 2


def test_to_purge_everything_must_be_meant(at: tuple[str, str]) -> None:
    uuid = here("submit", "echo", "x", "--wait", "20", *at).err.split()[0]
    done = here("purge", "--state", "done", *at)
    assert (done.code, done.out) == (2, b"")
    assert "--all" in done.err
    assert here("reply", uuid, *at).code == 0
    assert here("purge", "--state", "done", "--all", *at).code == 0
    assert here("reply", uuid, *at).code == 4


def test_the_limits_of_a_service(tmp_path: Path) -> None:
    with serving(tmp_path, "--service-limit", "small:waiting=1,bytes=1KiB") as (_, endpoint):
        at = ("--endpoint", endpoint)
        assert here("submit", "small", "x", *at).code == 0
        full = here("submit", "small", "x", *at)
        assert full.code == 1
        assert "service full" in full.err
        assert here("submit", "other", "x", *at).code == 0


@pytest.mark.parametrize("wrong", ["small", "small:", "small:waiting", "small:waiting=x", ":waiting=1", "small:size=1"])
def test_a_limit_that_makes_no_sense(tmp_path: Path, wrong: str) -> None:
    assert here("serve", "--store", tmp_path / "store", "--service-limit", wrong).code == 2
    assert not (tmp_path / "store").exists()
