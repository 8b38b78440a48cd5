"""Fifty configurations that are wrong, and the line of error that each gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_titanic import here
from support.each import each

from titanic import ServerConfig
from titanic.errors import CallerError


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "titanic.toml"


WRONG = [
    # What is not TOML.
    ("endpoint = ", 1, "this is not TOML: Invalid value"),
    ("# fine\nendpoint = tcp://127.0.0.1:5555", 2, "this is not TOML: Invalid value"),
    ("[serve\ngrace = 1", 1, "this is not TOML: Expected ']' at the end of a table declaration"),
    ("[serve]\ngrace = 1\ngrace = 2", 3, "this is not TOML: Cannot overwrite a value"),
    ("[serve]\ngrace = 1\n[serve]\ngrace = 2", 3, "this is not TOML: Cannot declare ('serve',) twice"),
    ("[serve]\nbind = ['a',\n'b'\ngrace = 1", 4, "this is not TOML: Unclosed array"),
    ("store = '/var/lib", 1, "this is not TOML: "),
    ("[serve]\ngrace: 3", 2, "this is not TOML: Expected '=' after a key"),
    # Keys that nobody knows.
    ("endpiont = 'x'", 1, "unknown key endpiont; did you mean endpoint?"),
    ("\n\n[serv]\nbind = 'x'", 3, "unknown key [serv]; did you mean serve?"),
    ("[status]\n# a word\ntimeuot = 1", 3, "unknown key [status] timeuot; did you mean timeout?"),
    ("[serve]\nretry_frist = 1", 2, "unknown key [serve] retry_frist; did you mean retry-first?"),
    ("[serve]\nbind = [\n  'tcp://*:1',\n]\ncapcity = 1", 5, "unknown key [serve] capcity; did you mean capacity?"),
    ("[status]\nbind = 'x'", 2, "unknown key [status] bind; it is an option of serve, broker"),
    ("[broker]\ncapacity = '1GiB'", 2, "unknown key [broker] capacity; it is an option of serve"),
    ("as_json = true", 1, "unknown key as_json; did you mean json?"),
    ("config = 'x'", 1, "unknown key config"),
    ("[serve]\nkeep_replies = '7d'", 2, "unknown key [serve] keep_replies; did you mean keep-replies?"),
    ("log_level = 'info'", 1, "unknown key log_level; did you mean log-level?"),
    ("zzz = 1", 1, "unknown key zzz"),
    ("[zzz]", 1, "unknown key [zzz]"),
    ("serve.gracee = 1", 1, "unknown key [serve] gracee; did you mean grace?"),
    ("[[serve]]\ngrace = 1", 1, "unknown key serve; it is a command: its settings belong under [serve]"),
    ("serve = 3", 1, "unknown key serve; it is a command: its settings belong under [serve]"),
    ("[serve.limits]\nmail = 3", 1, "unknown key [serve] limits"),
    # Values of the wrong kind.
    ("endpoint = 5", 1, "endpoint (of titanic submit) cannot be 5; it must be a string in quotes"),
    ("[status]\nmdp = ['a', 'b']", 2, "[status] mdp cannot be ['a', 'b']; it must be a string in quotes"),
    ("[status]\ntimeout = true", 2, "[status] timeout cannot be True; it must be a number"),
    ("[status]\ntimeout = 2026-01-01", 2, "[status] timeout cannot be datetime.date(2026, 1, 1); it must be a number"),
    ("[status]\njson = 'yes'", 2, "[status] json cannot be 'yes'; it must be true or false"),
    ("[serve]\npreallocate = 1", 2, "[serve] preallocate cannot be 1; it must be true or false"),
    ("[ls]\nlimit = 0.5", 2, "[ls] limit cannot be 0.5; it must be a whole number"),
    ("[serve]\nbind = [1]", 2, "[serve] bind cannot be [1]; it must be a string in quotes, or a list of these"),
    ("[serve]\nstore = 3", 2, "[serve] store cannot be 3; it must be a string in quotes"),
    ("[serve]\nmax-attempts = '5'", 2, "[serve] max-attempts cannot be '5'; it must be a whole number"),
    ("[serve]\ncapacity = [1]", 2, "[serve] capacity cannot be [1]; it must be a size like 500, 64MiB or 1.5GB"),
    ("[serve]\ngrace = {s = 1}", 2, "[serve] grace cannot be {'s': 1}; it must be a number"),
    ("[serve]\nbind = []", 2, "[serve] bind is empty; it must be a string in quotes, or a list of these"),
    ("[work]\nendpoint = []", 2, "[work] endpoint is empty; it must be a string in quotes, or a list of these"),
    # Values that cannot be.
    ("[serve]\nstore = ''", 2, "[serve] store: the name of a directory must not be empty; . is the current one"),
    ('[serve]\nstore = "a\\u0000b"', 2, "[serve] store cannot be 'a\\x00b': a string cannot contain NUL"),
    (
        '[serve]\nbind = ["tcp://\\u0000:1"]',
        2,
        "[serve] bind cannot be ['tcp://\\x00:1']: a string cannot contain NUL",
    ),
    ('[serve]\nlog-level = "\\u0000"', 2, "[serve] log-level cannot be '\\x00': a string cannot contain NUL"),
    ("[status]\ntimeout = 'soon'", 2, "[status] timeout: 'soon' is not a time from 0.001 s to 1157 days"),
    ("[status]\ntimeout = nan", 2, "[status] timeout: nan is not a time"),
    ("[serve]\ngrace = -1", 2, "[serve] grace: -1 is not a time from 0 s to 1157 days"),
    ("[serve]\nretry-most = inf", 2, "[serve] retry-most: inf is not a time"),
    ("[serve]\nheartbeat = 0", 2, "[serve] heartbeat: 0 is not a time from 0.01 s to 1157 days"),
    ("[status]\nmdp = '9'", 2, "[status] mdp: '9' is not one of '0.2', '0.1', 'majortomo'"),
    ("[serve]\nlog-level = 'loud'", 2, "[serve] log-level: 'loud' is not one of 'debug', 'info', 'warning', 'error'"),
    ("[ls]\nlimit = 0", 2, "[ls] limit: 0 is not in the range x>=1"),
    ("[serve]\nmax-attempts = 70000", 2, "[serve] max-attempts: 70000 is not in the range 1<=x<=65535"),
    ("[serve]\nlanes = 151", 2, "[serve] lanes: 151 is not in the range 1<=x<=150"),
    ("[serve]\ncapacity = '1 parsec'", 2, "[serve] capacity: '1 parsec' is not a size"),
    ("[serve]\ncapacity = 0", 2, "[serve] capacity: 0 is not a size from 16MiB to 16TiB"),
    ("[serve]\nmax-body = '99TiB'", 2, "[serve] max-body: 99TiB is not a size from 64KiB to 16TiB"),
    ("[serve]\nservice-limit = 'mail'", 2, "[serve] service-limit: 'mail' is not a limit; write it like NAME:waiting="),
    (
        "[serve]\nservice-limit = 'a:rate=10'",
        2,
        "[serve] service-limit: '10' is not a rate from 0.1/h to 100000/s; write",
    ),
    ("[serve]\nservice-limit = 'a:rate=0/s'", 2, "[serve] service-limit: '0/s' is not a rate from 0.1/h to 100000/s"),
    ("[serve]\nservice-limit = 'a:keep=soon'", 2, "[serve] service-limit: 'soon' is not a time from 0.001 s to "),
    ("[serve]\nservice-limit = 'a:keep_failed=never'", 2, "[serve] service-limit: 'never' is not a time from 0.001 s"),
    ("[serve]\nservice-limit = 'a:keep_body=soon'", 2, "[serve] service-limit: 'soon' is not a time from 0.001 s"),
    ("[serve]\nservice-limit = ['a:waiting=1', 'b:size=1']", 2, "[serve] service-limit: 'b:size=1' is not a limit; "),
    ("[serve]\nservice-limit = ['a:waiting=many']", 2, "[serve] service-limit: 'many' is not a size"),
    # Endpoints.
    ("[serve]\nbind = 'localhost'", 2, "[serve] bind: 'localhost' is not an endpoint; write it like tcp://"),
    ("[serve]\nbind = ['tcp://*:1', 'tcp://10.0.0.5']", 2, "[serve] bind: 'tcp://10.0.0.5' is not an endpoint"),
    ("[serve]\nbroker = 'carrier://pigeon'", 2, "[serve] broker: 'carrier://pigeon' is not an endpoint"),
    (
        "[work]\nendpoint = 'tcp://h:70000'",
        2,
        "[work] endpoint: 'tcp://h:70000' has an invalid port; use at most 65535",
    ),
    (
        "[work]\nendpoint = 'tcp://h:0'",
        2,
        "[work] endpoint: no client can connect to 'tcp://h:0'; name the machine and the",
    ),
    (
        "[serve]\nbroker = 'tcp://*:1'",
        2,
        "[serve] broker: no client can connect to 'tcp://*:1'; name the machine and the p",
    ),
    ("[serve]\nmetrics = '9469'", 2, "[serve] metrics: '9469' is not an address; write it like 127.0.0.1:9469"),
    # Values that are right each by itself.
    (
        "[serve]\nbind = 'tcp://*:1'\ngather = ['tcp://*:2', 'tcp://*:1']",
        3,
        "[serve] gather: gather is at tcp://*:1; bind has the same endpoint; choose another port",
    ),
    (
        "[serve]\nservice-limit = ['mail:waiting=1', 'b:waiting=1', 'mail:running=1']",
        2,
        "[serve] service-limit: mail is given twice; write its limits as one, like mail:waiting=1000,running=4",
    ),
    (
        "[serve]\ncapacity = '16MiB'\nmax-body = '17MiB'",
        3,
        "[serve] max-body: max-body is 17825792 bytes; the store's capacity is 16777216: such a body does not fit",
    ),
    (
        "[serve]\nretry-most = 1\nretry-first = '1m'",
        3,
        "[serve] retry-first: retry-first is 60 s; it must not be more than retry-most, 1 s; change one of the two",
    ),
    (
        "[serve]\nretry-most = 0.5",
        2,
        "[serve] retry-most: retry-first is 1 s; it must not be more than retry-most, 0.5",
    ),
    (
        "[serve]\nretry-first = '1h'",
        2,
        "[serve] retry-first: retry-first is 3600 s; it must not be more than retry-most,",
    ),
    (
        "[serve]\nbind = 'tcp://*:1'\nbroker = 'tcp://h:1'",
        3,
        "[serve] broker: bind is for the integrated broker; broker names another one; leave one out",
    ),
    (
        "broker = 'tcp://h:1'\n[serve]\ngather = 'tcp://*:1'",
        3,
        "[serve] gather: gather is for the integrated broker; broker names another one; leave one out",
    ),
]


def test_there_are_fifty() -> None:
    assert len({text for text, _, _ in WRONG}) == len(WRONG) >= 50


@each(("text", "line", "fact"), WRONG)
def test_it_is_told_where_and_why(toml: Path, text: str, line: int, fact: str) -> None:
    toml.write_text(text)
    done = here("config", "check", toml)
    assert done.out == b""
    said = done.err.splitlines()
    assert done.code == 1
    assert said[0].startswith(f"{toml}:{line}: {fact}")
    if "not TOML" in fact:
        assert len(said) == 1


def test_what_is_not_utf_8(toml: Path) -> None:
    toml.write_bytes(b"[serve]\n# caf\xe9\n")
    done = here("config", "check", toml)
    assert (done.code, done.err) == (1, f"{toml}:2: this is not TOML: it is not UTF-8\n")
    assert here("serve", "--config", toml).code == 2
    assert here("config", "show", "--config", toml).code == 1


def test_what_does_not_contradict_itself(toml: Path) -> None:
    toml.write_text(
        "[serve]\ncapacity = '32MiB'\nbind = ['tcp://*:*', 'tcp://*:1']\ngather = ['tcp://*:*']\n"
        "service-limit = ['a:waiting=1,running=1', 'b:waiting=1']\n"
    )
    assert here("config", "check", toml).code == 0


MANY = """timeuot = 1
log-level = "loud"
[status]
timeout = "soon"
[serve]
grace = "soon"
garce = 1
retry-first = "1h"
"""


def test_all_of_them_are_told_in_one_go(toml: Path) -> None:
    """Once each, in the order of the lines, whoever asks: those for other commands, too."""
    toml.write_text(MANY)
    done = here("config", "check", toml)
    assert done.code == 1
    assert [line.removeprefix(f"{toml}:").partition("; ")[0] for line in done.err.splitlines()] == [
        "1: unknown key timeuot",
        "2: log-level (of titanic serve): 'loud' is not one of 'debug', 'info', 'warning', 'error'.",
        "4: [status] timeout: 'soon' is not a time from 0.001 s to 1157 days",
        "6: [serve] grace: 'soon' is not a time from 0 s to 1157 days",
        "7: unknown key [serve] garce",
        "8: [serve] retry-first: retry-first is 3600 s",
    ]
    for command in (("status",), ("serve",), ("config", "show")):
        assert here(*command, "--config", toml).err.replace("titanic: ", "") == done.err


def test_a_command_does_not_mind_values_for_others(toml: Path) -> None:
    toml.write_text("[status]\ntimeout = 'soon'\n")
    assert here("config", "show", "serve", "--config", toml).code == 0


def test_contradictions_in_a_program() -> None:
    with pytest.raises(CallerError, match="bind is empty; no client could connect; name at least one endpoint"):
        ServerConfig(bind=())
    with pytest.raises(CallerError, match="retry_first is 301 s; it must not be more than retry_most, 300 s"):
        ServerConfig(retry_first=301)
    assert ServerConfig(bind=(), broker="tcp://127.0.0.1:5555").bind == ()


def test_contradictions_of_other_sources(toml: Path, tmp_path: Path) -> None:
    """Told at the start, as wrong usage: a service manager must not try again."""
    toml.write_text("[serve]\nretry-first = '2m'\n")
    store = ("--store", tmp_path / "store")
    done = here("serve", *store, "--config", toml, TITANIC_RETRY_MOST="1m")
    assert done.code == 2
    assert "retry-first is 120 s; it must not be more than retry-most, 60 s; change one of the two" in done.err
    done = here("serve", *store, "--broker", "tcp://127.0.0.1:9", "--gather", "tcp://127.0.0.1:*")
    assert done.code == 2
    assert "gather is for the integrated broker" in done.err
    assert here("serve", "--store", "").code == 2


def test_files_that_cannot_be_read(toml: Path, tmp_path: Path) -> None:
    toml.write_bytes(b"# fine\na = '\xff'")
    assert f"{toml}:2: this is not TOML: it is not UTF-8" in here("status", "--config", toml).err
    assert "No such file" in here("status", "--config", tmp_path / "absent").err
    assert "No such file" in here("config", "check", tmp_path / "absent").err
    assert here("status", "--config", tmp_path).code == 2
    assert "cannot read" in here("config", "check", tmp_path).err


def test_mistakes_for_programs(toml: Path) -> None:
    toml.write_text("grace = 3\n[serve]\ngrace = -1\ngarce = 1\n")
    done = here("config", "check", "--json", toml)
    assert (done.code, done.err, done.json["ok"], done.json["settings"]) == (1, "", False, 3)
    assert sorted((one["line"], one["text"].split(";")[0]) for one in done.json["errors"]) == [
        (3, "[serve] grace: -1 is not a time from 0 s to 1157 days"),
        (4, "unknown key [serve] garce"),
    ]
    toml.write_text("grace = = 3\n")
    assert here("config", "check", "--json", toml).json["errors"][0] == {
        "line": 1,
        "text": "this is not TOML: Invalid value",
    }
    toml.write_text("grace = 3\n")
    assert here("config", "check", "--json", toml).json == {"ok": True, "settings": 1, "errors": []}


def test_a_file_that_is_right(toml: Path) -> None:
    toml.write_text(
        'endpoint = "tcp://[::1]:5"\n[serve]\nbind = ["ipc:///run/t.sock", "tcp://*:0"]\nmax-body = 1000000\n'
        'retry-first = 0.1\nretry-most = 0.1\nmetrics = ":9469"\n[broker]\nbind = "tcp://*:1"\n'
    )
    assert here("config", "check", toml) == (0, f"{toml}: 7 settings, no errors\n".encode(), "")


def test_a_variable_that_is_wrong_is_named() -> None:
    done = here("status", TITANIC_TIMEOUT="soon")
    assert done.code == 2
    assert done.err.splitlines()[-1] == (
        "titanic: invalid value for '--timeout': 'soon' is not a time from 0.001 s to 1157 days"
        "; write seconds, or a unit: 250ms, 90s, 5m, 1.5h, 30d"
        " (from TITANIC_TIMEOUT in the environment)"
    )
