"""Which line decides what a user may do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker import AccessError, UsageError, decide, load_access
from broker.access import decision
from broker.access.users import BY_SERVICE, FLAGS, Permission

FILE = """\
[roles.sender]
submit = [
    "mail.*",
    "resize",
]
read = "own"
close = true

[roles.chief]
admin = true

[users.shop]
roles = ["sender"]
work = ["*"]
[users.root]
roles = ["sender", "chief"]
[users.boss]
admin = true
[users.audit]
read = "all"
[users.closer]
close = true
[users.figures]
metrics = true
[users.none]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "access.toml"
    path.write_text(FILE)
    return path


DECIDED = [
    ("shop submit mail.welcome", True, '"mail.*",', "'mail.*' matches mail.welcome"),
    ("shop submit resize", True, '"resize",', "'resize' matches resize"),
    ("shop submit pay", False, "[users.shop]", 'no line allows it; add submit = ["pay"] here or to one of its roles'),
    ("none submit pay", False, "[users.none]", 'no line allows it; add submit = ["pay"] here'),
    ("shop work pay", True, 'work = ["*"]', "'*' matches pay"),
    (
        "shop work titanic.submit",
        False,
        "[users.shop]",
        "no line allows it (titanic.submit is matched only by patterns that begin with titanic.); add work ="
        ' ["titanic.submit"] here or to one of its roles',
    ),
    ("shop call pay", False, "[users.shop]", 'no line allows it; add call = ["pay"] here or to one of its roles'),
    ("root submit mail.x", True, '"mail.*",', "'mail.*' matches mail.x"),
    ("root submit pay", True, "admin = true", "root is an admin, which may submit to every service"),
    ("root call pay", False, "[users.root]", 'no line allows it; add call = ["pay"] here or to one of its roles'),
    ("shop read", True, 'read = "own"', "shop reads its own requests"),
    ("audit read", True, 'read = "all"', "audit reads all requests"),
    ("boss read", True, "admin = true", "boss is an admin and reads all requests"),
    ("none read", False, "[users.none]", 'no line allows it; add read = "own" or read = "all" here'),
    ("shop close", True, "close = true", "shop closes its own requests"),
    ("boss close", True, "admin = true", "boss is an admin and closes all requests"),
    ("audit close", False, "[users.audit]", "no line allows it; add close = true here"),
    (
        "closer close",
        False,
        "close = true",
        'closer may close only what it may read, which is nothing; it needs read = "own" or read = "all"',
    ),
    ("figures metrics", True, "metrics = true", "figures has metrics"),
    ("boss metrics", True, "admin = true", "boss is an admin, which sees all statistics"),
    ("audit metrics", False, "[users.audit]", "no line allows it; add metrics = true here"),
    ("boss admin", True, "admin = true", "boss has admin"),
    ("shop admin", False, "[users.shop]", "no line allows it; add admin = true here or to one of its roles"),
]


@pytest.mark.parametrize(("question", "allowed", "text", "reason"), DECIDED)
def test_the_line_that_decides(file: Path, question: str, allowed: bool, text: str, reason: str) -> None:
    found = decide(file, *question.split())
    assert (found.allowed, found.text, found.reason) == (allowed, text, reason)
    assert FILE.split("\n")[found.line - 1].strip() == text
    assert found.path == file


@pytest.mark.parametrize("flag", FLAGS)
def test_an_admin_has_each_flag(file: Path, flag: str) -> None:
    assert (decide(file, "boss", flag).allowed, decide(file, "none", flag).allowed) == (True, False)


def test_a_flag_without_words_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "_ADMINS_MAY", {})
    assert decide(file, "boss", "archive").reason == "boss is an admin, which implies archive"


def test_who_is_not_there(file: Path) -> None:
    found = decide(file, "shpo", "submit", "mail.x")
    assert (found.allowed, found.line, found.text) == (False, 0, "")
    assert found.reason == "there is no user 'shpo'; did you mean shop?"
    assert decide(file, "xyzzy", "read").reason == "there is no user 'xyzzy'; add [users.xyzzy]"


def test_questions_that_cannot_be(file: Path) -> None:
    with pytest.raises(UsageError, match="unknown action 'write'; choose one of submit, work, call, read, close, "):
        decide(file, "shop", "write", "mail")
    for action in ("submit", "work", "call"):
        with pytest.raises(UsageError, match=f"{action} needs a service: service name is empty; name one"):
            decide(file, "shop", action)
    file.write_text("[users.a]\nx = 1")
    with pytest.raises(AccessError, match=r"access\.toml:2: unknown "):
        decide(file, "a", "read")


PATTERNS = st.lists(
    st.sampled_from(["*", "a", "a*", "b.*", "titanic.*", "mmi.*", "web.*", "titanic.s[a-z]*", "?"]), max_size=3
)
PERMISSIONS = st.fixed_dictionaries(
    {},
    optional={
        "submit": PATTERNS,
        "work": PATTERNS,
        "call": PATTERNS,
        "read": st.sampled_from(["own", "all"]),
        **{flag: st.booleans() for flag in FLAGS},
    },
)


def toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tables=st.fixed_dictionaries({"users.u": PERMISSIONS, "roles.r": PERMISSIONS, "roles.s": PERMISSIONS}),
    roles=st.lists(st.sampled_from("rs"), max_size=2),
    service=st.sampled_from(["a", "ab", "b.c", "titanic.submit", "mmi.services", "web.ended", "x.y"]),
)
def test_it_decides_as_the_broker_does(
    file: Path, tables: dict[str, dict[str, object]], roles: list[str], service: str
) -> None:
    tables = tables | {"users.u": tables["users.u"] | {"roles": roles}}
    lines = {name: "".join(f"{key} = {toml(one)}\n" for key, one in table.items()) for name, table in tables.items()}
    file.write_text("".join(f"[{name}]\n{below}" for name, below in lines.items()))
    user = load_access(file).users["u"]
    expected = {one.value: user.may(one, service.encode()) for one in BY_SERVICE}
    expected |= {"read": user.reads(b"u"), "close": user.closes(b"u"), "admin": user.admin}
    expected |= {flag: getattr(user, flag) or user.admin for flag in FLAGS if flag not in ("close", "admin")}
    found = {one.value: decide(file, "u", one.value, service) for one in Permission}
    assert {action: one.allowed for action, one in found.items()} == expected
    assert not [one for one in found.values() if one.allowed and one.text.startswith("[")]
