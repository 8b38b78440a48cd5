"""`titanic status`, `ls`, `show` and `check`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.cli_titanic import here, serving, working
from support.waiting import until

from titanic.cli.printing import print_table
from titanic.cli.stored_requests import _indented

pytestmark = pytest.mark.usefixtures("workers")


@pytest.fixture
def at(endpoint: str) -> tuple[str, str]:
    return ("--endpoint", endpoint)


def rows(text: bytes) -> dict[str, list[str]]:
    """The lines of a table or of `show`, by their first word."""
    return {line.split()[0]: re.split(" {2,}", line.strip())[1:] for line in text.decode().splitlines() if line.strip()}


def test_status(at: tuple[str, str]) -> None:
    here("submit", "status-test", "--lines", "-", *at, stdin=b"1\n2\n3\n")
    done = here("status", *at)
    assert done.code == 0
    assert rows(done.out)["status-test"] == ["3", "0"]
    assert rows(done.out)["echo"] == ["0", "1"]
    document = here("status", "--json", *at).json
    assert document["services"]["status-test"] == 3
    assert document["workers"]["echo"] == 1
    assert document["store"]["requests"] >= 3


def test_ls(at: tuple[str, str]) -> None:
    uuids = here("submit", "ls-test", "--lines", "-", *at, stdin=b"1\n22\n333\n").out.decode().split()
    listed = rows(here("ls", "--service", "ls-test", *at).out)
    assert list(listed) == ["UUID", *uuids]
    assert [listed[uuid][1] for uuid in uuids] == ["waiting"] * 3
    assert [listed[uuid][4] for uuid in uuids] == ["1 B", "2 B", "3 B"]
    few = here("ls", "--service", "ls-test", "--most", "2", *at)
    assert list(rows(few.out)) == ["UUID", *uuids[:2]]
    assert "--most" in few.err
    document = here("ls", "--service", "ls-test", "--json", *at).json
    assert [row["uuid"] for row in document] == uuids
    assert here("ls", "--service", "ls-test", "--state", "done", "--json", *at).json == []
    assert here("ls", TITANIC_LIMIT="0.5", TITANIC_LS_LIMIT="1", TITANIC_ENDPOINT=at[1]).code == 0


def test_a_paused_service(at: tuple[str, str]) -> None:
    uuid = here("submit", "parked", "a", *at).out.decode().strip()
    assert here("pause", "parked", *at)[:2] == (0, b"")
    assert here("pause", "parked", *at).err == "titanic: parked is already paused\n"
    assert rows(here("ls", "--service", "parked", *at).out)[uuid][1] == "paused"
    assert b"\nstate        waiting; its service is paused\n" in here("show", uuid, *at).out
    assert b"\npaused: parked\n" in here("status", *at).out
    assert here("status", "--json", *at).json["settings"] == {"parked": {"paused": True, "on_end": None}}
    told = here("resume", "parked", "--json", *at).json
    assert told == {"done": 1, "service": "parked", "paused": False, "on_end": None}
    assert here("resume", "parked", *at).err == "titanic: parked is not paused\n"
    assert rows(here("ls", "--service", "parked", *at).out)[uuid][1] == "waiting"
    here("close", uuid, *at)


def test_limits_of_a_service(at: tuple[str, str], tmp_path: Path) -> None:
    assert here("limits", "bounded", *at).line == "bounded has no limits"
    lines = (
        here("limits", "bounded", "--running", "4", "--rate", "30/m", "--bytes", "1MiB", *at).out.decode().splitlines()
    )
    begins = "bytes ≤ 1MiB (set ", "running ≤ 4 (set ", "rate ≤ 30/m (set "
    assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True))
    assert all(line.endswith(" ago; configured: no limit)") for line in lines)
    assert here("limits", "bounded", *at).out.decode().splitlines()[2].startswith("rate ≤ 30/m (set ")
    assert b"\nbounded: bytes \xe2\x89\xa4 1MiB (set " in here("services", *at).out
    found = here("limits", "bounded", "--reset", "--rate", "2/s", "--json", *at).json
    limits = {"waiting": None, "bytes": None, "running": None, "rate": 2.0}
    assert found["limits"] == limits
    assert found["limits_set"].items() >= limits.items()
    assert here("services", "--json", *at).json["services"]["bounded"]["limits"] == limits
    assert here("limits", "bounded", "--reset", *at).line == "bounded has no limits"
    assert here("limits", "bounded", "--json", *at).json == {"limits": dict.fromkeys(limits)}
    elsewhere = {"TITANIC_RATE": "50/s", "TITANIC_RESET": "1"}  # as for `titanic requeue`
    assert here("limits", "bounded", *at, **elsewhere).line == "bounded has no limits"
    (tmp_path / "titanic.toml").write_text('rate = "50/s"\n')
    in_file = here("limits", "bounded", *at, TITANIC_CONFIG=str(tmp_path / "titanic.toml"))
    assert in_file.line == "bounded has no limits"


@pytest.mark.parametrize("wrong", [("--running", "0"), ("--rate", "10"), ("--bytes", "x"), ("--waiting", "-1")])
def test_a_limit_that_cannot_be_set(at: tuple[str, str], wrong: tuple[str, str]) -> None:
    done = here("limits", "bounded", *wrong, *at)
    assert done.code == 2
    assert wrong[0] in done.err


TRACE = f"00-{1:032x}-{2:016x}-01"


def test_show(at: tuple[str, str]) -> None:
    uuid = here("submit", "echo", "a", "bc", "--wait", "20", *at).err.split()[0]
    shown = rows(here("show", uuid, *at).out)
    assert shown["uuid"] == [uuid]
    assert shown["state"] == ["done"]
    assert shown["source"] == ["127.0.0.1"]
    assert shown["body"] == shown["reply"] == ["2 frames, 3 B"]
    assert re.search(r"\(waited [^)]+\)$", shown["last"][0] + shown["last"][-1])
    assert re.search(r"\(ran [^)]+\)$", shown["ended"][0])
    document = here("show", uuid, "--json", *at).json
    assert (document["state"], document["attempts"], document["reply_bytes"]) == ("done", 1, 3)
    assert document["source"] == "127.0.0.1"


def test_show_tells_all_that_was_asked_for(at: tuple[str, str]) -> None:
    options = {
        "priority": "7",
        "limit": "90",
        "max-attempts": "3",
        "delay": "1h",
        "ttl": "2h",
        "key": "inspect: 1",
        "trace": TRACE,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    uuid = here("submit", "absent", "x", *words, *at).line
    text = here("show", uuid, *at).out.decode()
    for line in (
        r"key +inspect: 1",
        r"priority +7",
        rf"trace +{TRACE}",
        r"limit +90 s",
        r"max attempts +3",
        r"not before +\S+ \S+ \(in (1 h|60 min)\)",
        r"expires +\S+ \S+ \(in (2 h|120 min)\)",
    ):
        assert re.search(rf"^{line}$", text, re.MULTILINE), line
    assert "next attempt" not in text
    document = here("show", uuid, "--json", *at).json
    assert document["options"] == {"limit": 90}
    assert document["expires_at"] - document["submitted_at"] == pytest.approx(7200e6, abs=1e6)


def test_what_a_request_does_not_have_is_null(at: tuple[str, str]) -> None:
    uuid = here("submit", "absent", "x", *at).line
    row = here("show", uuid, "--json", *at).json
    assert {name for name, value in row.items() if value is None} == {
        *("key", "not_before", "expires_at", "max_attempts", "due", "dispatched_at", "finished_at", "reason")
    }
    assert row in here("ls", "--service", "absent", "--most", "1000", "--json", *at).json


def test_the_help_names_all_that_programs_are_given(at: tuple[str, str]) -> None:
    uuid = here("submit", "absent", "x", *at).line
    status = here("status", "--json", *at).json
    names = [*status, *(name for part in ("store", "since_start", "dispatch") for name in status[part])]
    words = set(re.findall(r"\w+", here("status", "--help").out.decode()))
    assert not set(names) - words
    words = set(re.findall(r"\w+", here("show", "--help").out.decode()))
    assert not here("show", uuid, "--json", *at).json.keys() - words


def test_what_expired_has_waited_and_not_run(at: tuple[str, str]) -> None:
    uuid = here("submit", "absent", "x", "--ttl", "0.001", "--wait", "20", *at).err.split()[0]
    shown = rows(here("show", uuid, *at).out)
    assert shown["body"] == ["1 frame, 1 B"]
    assert shown["reason"]
    assert "last error" not in here("show", uuid, *at).out.decode()
    assert re.search(r"\(waited [^)]+\)$", shown["ended"][0])


def test_what_a_damaged_record_says_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("SERVICE", "STATE"), [("a\x1b[31m\nb\t", "waiting")])
    assert capsys.readouterr().out.splitlines()[1] == "a\\x1b[31m\\nb\\t  waiting"


def test_show_tells_what_the_worker_said_when_it_failed_for_good(at: tuple[str, str]) -> None:
    uuid = here("submit", "fail", "x", "--wait", "20", *at).err.split()[0]
    text = here("show", uuid, *at).out.decode()
    assert re.search(r"state +failed\n", text)
    assert re.search(r"attempts +2\n", text)
    assert re.search(r"last error +no way\n +said the worker\n", text)
    assert here("show", uuid, "--json", *at).json["reason"] == "no way\nsaid the worker"


def test_show_tells_what_a_command_said_while_it_is_tried_again(tmp_path: Path) -> None:
    script = "echo oh no >&2; echo not this; exit 3"
    with serving(tmp_path, "--retry-first", "1000", "--retry-most", "1000") as (_, endpoint):
        uuid = here("submit", "no", "x", "--endpoint", endpoint).line
        with working(tmp_path, endpoint, "no", "sh", "-c", script) as worker:
            worker.says(f"WARNING titanic.work: {uuid}: the command exited with 3: oh no\n")
            until(lambda: here("ls", "--state", "delayed", "--endpoint", endpoint, "--json").json)
            shown = here("show", uuid, "--endpoint", endpoint).out.decode()
        assert re.search(r"next attempt +\S+ \S+ \(in [^)]+\)\n", shown)
        assert re.search(r"last error +the command exited with 3\n +oh no\n$", shown)


# -- without a server ----------------------------------------------------------------------------------------------


def test_the_files_tell_the_same_with_and_without_a_server(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with serving(tmp_path, "--max-attempts", "1") as (_, endpoint):
        with working(tmp_path, endpoint, "no", "sh", "-c", "echo oh no >&2; exit 3"):
            failed = here("submit", "no", "x", "--endpoint", endpoint, "--wait", "20").err.split()[0]
        waiting = here("submit", "s", "x", "--endpoint", endpoint).line
        online = [
            here(*command, "--endpoint", endpoint).json for command in (["ls", "--json"], ["show", failed, "--json"])
        ]
        assert [
            here(*command, "--store", store).json for command in (["ls", "--json"], ["show", failed, "--json"])
        ] == online
    assert [row["uuid"] for row in here("ls", "--state", "waiting", "--store", store, "--json").json] == [waiting]
    assert re.search(r"exited with 3\n +oh no\n$", here("show", failed, "--store", store).out.decode())
    assert here("show", failed, "--offline", TITANIC_STORE=store).code == 0
    status = here("status", "--store", store)
    assert status.out.startswith(f"store {store}: 2 requests (1 waiting, 0 running, 0 delayed, 1 ended)".encode())
    assert rows(status.out)["s"] == ["1", "?"]
    assert here("show", "0" * 32, "--store", store).code == 4
    assert here("ls", "--store", tmp_path / "nothing").code == 2


# -- check ---------------------------------------------------------------------------------------------------------


def test_check(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert here("check", "--store", store).code == 2
    assert not store.exists()
    with serving(tmp_path) as (server, endpoint):
        uuid = here("submit", "s", "a body of iron", "--endpoint", endpoint).line
        assert here("check", "--store", store).out.endswith(b"1 request, 0 replies: no problems\n")
        locked = here("check", "--store", store, "--repair")
        assert locked.code == 1
        assert f"pid {server.process.pid}" in locked.err
    assert here("check", "--store", store) == (0, f"{store}: 1 request, 0 replies: no problems\n".encode(), "")
    assert here("check", "--json", TITANIC_STORE=str(store)).json == {
        "requests": 1,
        "replies": 0,
        "problems": [],
        "left": 0,
    }

    data = store / "data.mdb"
    data.write_bytes(data.read_bytes().replace(b"body of iron", b"body of rust"))
    damaged = here("check", "--store", store)
    assert damaged.code == 1
    assert uuid in damaged.out.decode()
    assert damaged.out.endswith(b" problem\n")
    document = here("check", "--store", store, "--json")
    assert document.code == 1
    assert uuid in document.json["problems"][0]["where"]
    assert document.json["left"] == len(document.json["problems"])

    repaired = here("check", "--store", store, "--repair")
    assert repaired.code == 0
    assert repaired.out.endswith(b", 0 left after the repair\n")
    with serving(tmp_path) as (_, endpoint):
        shown = rows(here("show", uuid, "--endpoint", endpoint).out)
        assert shown["state"] == ["failed"]


# -- backup and restore ---------------------------------------------------------------------------------------------


def test_a_backup_of_a_store_in_use(tmp_path: Path) -> None:
    store, copy, again = tmp_path / "store", tmp_path / "copy", tmp_path / "again"
    with serving(tmp_path) as (_, endpoint):
        uuids = here("submit", "s", "--lines", "-", "--endpoint", endpoint, stdin=b"1\n2\n3\n").out.decode().split()
        done = here("backup", copy, "--store", store)
        assert done.code == 0
        assert done.out.startswith(f"{copy}: ".encode())
        here("close", *uuids, "--endpoint", endpoint)
        assert here("backup", copy, "--store", store).code == 1  # it is there already
        other = tmp_path / "other"
        told = here("backup", other, "--store", store, "--json").json
        assert told == {"path": str(other), "bytes": (other / "data.mdb").stat().st_size}
    assert here("restore", copy, "--store", store).code == 1  # so is this
    assert here("restore", copy, "--store", again).code == 0
    told = here("restore", copy, "--store", tmp_path / "third", "--json").json
    assert told == {"path": str(tmp_path / "third"), "bytes": (tmp_path / "third" / "data.mdb").stat().st_size}
    assert here("check", "--store", again).out == f"{again}: 3 requests, 0 replies: no problems\n".encode()
    assert here("restore", tmp_path / "nothing", "--store", tmp_path / "new").code == 2
    assert here("backup", tmp_path / "new", "--store", tmp_path / "nothing").code == 2
    assert not (tmp_path / "new").exists()


def test_old_names_of_options_go_on_with_a_warning(at: tuple[str, str], tmp_path: Path) -> None:
    done = here("ls", "--limit", "1", *at)
    assert (done.code, done.err.splitlines()[0]) == (0, "titanic: --limit is now called --most")
    assert "--limit" not in here("ls", "--help").out.decode()
    assert "--key " not in here("status", "--help").out.decode()
    missing = here("status", "--key", tmp_path / "me.key_secret", *at)
    assert (missing.code, "called" in missing.err) == (2, False), "it is not old: it is another name"


def test_a_variable_that_no_option_has_is_named(at: tuple[str, str]) -> None:
    done = here("ls", *at, TITANIC_ENDPONT="x")
    assert done.code == 0
    assert "unknown environment variable TITANIC_ENDPONT; did you mean TITANIC_ENDPOINT?" in done.err


def test_why(at: tuple[str, str]) -> None:
    uuid = here("submit", "why-test", "a", *at).out.decode().strip()
    done = here("why", uuid, *at)
    assert done.code == 0
    reason, step = done.out.decode().splitlines()
    assert reason.startswith("waiting: no worker of why-test has registered since the server started ")
    assert step == "next: start one: titanic work why-test -- COMMAND, or titanic worker"
    document = here("why", uuid, "--json", *at).json
    assert (document["uuid"], document["state"], document["kind"]) == (uuid, "waiting", "no-worker")
    here("close", uuid, *at)
    assert here("why", uuid, *at).code == 4


def test_why_without_a_server(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, endpoint):
        later = here("submit", "b", "a", "--delay", "60", "--endpoint", endpoint).out.decode().strip()
        waiting = here("submit", "b", "a", "--endpoint", endpoint).out.decode().strip()
    at = ("--store", tmp_path / "store")
    assert here("why", waiting, "--json", *at).json["kind"] == "no-server"
    assert here("why", later, "--json", *at).json["kind"] == "delayed"


def test_ls_chooses_by_key_text_and_age(at: tuple[str, str], tmp_path: Path) -> None:
    uuids = [here("submit", "choose", "a", *at, "--key", f"order-{n}").out.decode().strip() for n in range(3)]
    choose = ("ls", "--service", "choose", "--json")

    def found(*options: str, source: tuple[str, ...] = at) -> list[int]:
        return [uuids.index(row["uuid"]) for row in here(*choose, *options, *source).json]

    assert found("--newest") == [2, 1, 0]
    assert found("--newest", "--most", "2") == [2, 1]
    assert found("--key", "order-1") == [1]
    assert found("--key", "order-1", "--state", "done") == []
    assert found("--key", "order") == []
    (tmp_path / "me.key_secret").touch()
    assert "give it as --key-file" in here("ls", "--key", tmp_path / "me.key_secret", *at).err
    assert found("--text", "ORDER-2") == [2]
    assert found("--key", "order-2", "--text", "order-1") == []
    assert found("--since", "1h") == [0, 1, 2]
    assert found("--since", "1h", "--newest", "--most", "1") == [2]
    until(lambda: found("--since", "50ms") == [])
    assert found("--since", "50ms", "--newest") == found("--since", "50ms", "--key", "order-1") == []
    here("close", *uuids, *at)
    assert found("--key", "order-1") == []


def test_ls_chooses_in_files(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, endpoint):
        here("submit", "a", "x", "--key", "k", "--endpoint", endpoint)
        here("submit", "a", "y", "--endpoint", endpoint)
    at = ("--json", "--store", tmp_path / "store")
    assert [row["key"] for row in here("ls", "--key", "k", *at).json] == ["k"]
    assert [row["key"] for row in here("ls", "--newest", "--since", "1h", *at).json] == [None, "k"]


def test_show_prints_the_body(at: tuple[str, str], tmp_path: Path) -> None:
    body = b'{"a": [1, 2]}\xff'
    uuid = here("submit", "bodies", "--stdin", *at, stdin=body).out.decode().strip()
    assert here("show", "--body", uuid, *at).out == body
    assert here("show", "--body", "--json", uuid, *at).json["body"] == [{"base64": "eyJhIjogWzEsIDJdff8="}]
    here("close", uuid, *at)
    assert here("show", "--body", uuid, *at).code == 4
    with serving(tmp_path) as (_, endpoint):
        uuid = here("submit", "a", "x", "y", "--endpoint", endpoint).out.decode().strip()
    assert here("show", "--body", uuid, "--store", tmp_path / "store").out == b"xy"


def test_json_is_indented_for_people() -> None:
    assert _indented([b'{"a": [1]}', b"1.10", b"[\xff"]) == [b'{\n  "a": [\n    1\n  ]\n}', b"1.10", b"[\xff"]
