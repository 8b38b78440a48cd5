"""The access file: what it gives, and what is wrong with it, where."""

from __future__ import annotations

import math
import os
import pwd
import re
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker import AccessError, AccessFile, load_access, new_keys, public_key
from broker.access.users import Permission, Reach, UserLimits
from broker.toml_file import KeyPath, lines_of

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
OTHER = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
TOKEN = "sha256:" + "0a" * 32

EXAMPLE = f"""\
[roles.sender]
submit = ["mail.*", "resize"]
read = "own"
close = true
limits = {{ waiting = 10, bytes = 5 }}

[roles.auditor]
submit = ["mail.*", "audit"]
read = "all"
limits = {{ waiting = 7 }}

[users.shop]
keys = [
    "{KEY}",  # at home
    "shop2.key",
]
roles = ["sender"]
call = ["echo"]
limits = {{ bytes = 1_000, messages = 1000, connections = 50 }}

[users.chief]
roles = ["sender", "auditor"]
admin = true

[users.prometheus]
tokens = ["{TOKEN}"]
metrics = true

[endpoints."ipc:///run/titanic/titanic.sock"]
user = "shop"
uids = [0, "root", 33]

[endpoints."tcp://127.0.0.1:5555"]
user = "chief"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    new_keys(tmp_path, "shop2")
    path = tmp_path / "access.toml"
    path.write_text(EXAMPLE)
    return path


def test_all_that_a_file_can_say(file: Path) -> None:
    access = load_access(file)
    shop, chief, prometheus = (access.users[name] for name in ("shop", "chief", "prometheus"))
    assert access.keys == {KEY: shop, public_key(file.parent / "shop2.key"): shop}
    assert access.tokens == {"0a" * 32: prometheus}
    assert access.endpoints == {"ipc:///run/titanic/titanic.sock": shop, "tcp://127.0.0.1:5555": chief}
    assert access.uids == {"ipc:///run/titanic/titanic.sock": (0, 0, 33)}
    assert shop.services == {Permission.SUBMIT: ("mail.*", "resize"), Permission.CALL: ("echo",)}
    assert (shop.read, shop.close, shop.metrics, shop.admin) == (Reach.OWN, True, False, False)
    assert shop.limits == UserLimits(waiting=10, bytes=1000, messages=1000, connections=50)
    assert chief.services == {Permission.SUBMIT: ("mail.*", "resize", "audit")}
    assert (chief.read, chief.close, chief.metrics, chief.admin) == (Reach.ALL, True, False, True)
    assert chief.limits == UserLimits(waiting=7, bytes=5)
    assert (prometheus.services, prometheus.read, prometheus.metrics) == ({}, Reach.NONE, True)
    assert set(AccessFile(file).roles) == {"sender", "auditor"}


def test_a_limit_of_ones_own_can_be_none(file: Path) -> None:
    file.write_text("[roles.r]\nlimits.waiting = 5\n[users.u]\nroles = ['r']\nlimits.waiting = 0")
    assert load_access(file).users["u"].limits.waiting == 0


@pytest.mark.parametrize(
    ("line", "expires", "is_expired"),
    [
        ("", math.inf, False),
        ("expires = 2001-02-03", 981_244_800, True),
        ("expires = 2001-02-03T12:00:00+02:00", 981_194_400, True),
        ("expires = 2200-01-01", 7_258_204_800, False),
        ("expires = 9999-12-31", 253_402_300_800, False),
    ],
)
def test_users_expire_at_the_end_of_a_day_or_at_a_time(file: Path, line: str, expires: float, is_expired: bool) -> None:
    file.write_text(f"[users.u]\n{line}")
    user = load_access(file).users["u"]
    assert (user.expires, user.is_expired(time.time())) == (expires, is_expired)


def test_logins_are_given_as_they_are_sent(file: Path) -> None:
    file.write_text("[users.u]\nlogin = ['Ann@example.org', 'Änne Ö.']\n[users.v]\nlogin = ['sha256:0A']")
    access = load_access(file)
    users = access.users
    assert access.logins == {"Ann@example.org": users["u"], "Änne Ö.": users["u"], "sha256:0A": users["v"]}


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (
            "login = 'ann'",
            "login is a string; it must be a list of strings, like ['ann@example.org']".replace("'", '"'),
        ),
        ("login = [' ann']", "a login is written as the name that the proxy or the application sends"),
        ("login = ['']", "a login is written as the name"),
        ('login = ["a\\nb"]', "a login is written as the name"),
        ("login = ['ann']\n[users.v]\nlogin = ['ann']", "user u has the same login, in line 2"),
        ("[roles.r]\nlogin = ['ann']", "unknown [roles.r] login"),
    ],
)
def test_a_login_is_one_users_name(file: Path, lines: str, fault: str) -> None:
    file.write_text(f"[users.u]\n{lines}")
    with pytest.raises(AccessError, match=re.escape(fault)):
        load_access(file)


def test_certificates_are_given_by_their_hashes(file: Path) -> None:
    file.write_text(f"[users.u]\ncertificates = ['sha256:{'0A' * 32}']")
    access = load_access(file)
    assert access.certificates == {"0a" * 32: access.users["u"]}
    file.write_text("[users.u]\ncertificates = ['ann.pem']")
    with pytest.raises(
        AccessError, match=r"2: .*a certificate is written as its hash: sha256: and 64 hex.*openssl x509"
    ):
        load_access(file)
    file.write_text(f"[users.u]\ncertificates = ['{TOKEN}']\n[users.v]\ncertificates = ['{TOKEN}']")
    with pytest.raises(AccessError, match=r"4: .*user u has the same certificate"):
        load_access(file)


@pytest.mark.parametrize("text", ["", "# nobody yet\n", "[roles.sender]\nclose = true\n", "[users]\n"])
def test_a_file_without_users_is_a_fault_unless_it_says_so(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(AccessError, match=r":1: there are no users, so no client or worker could connect; add \[users"):
        load_access(file)
    file.write_text("allow_lockout = true\n" + text)
    access = load_access(file)
    assert (access.users, access.keys, access.tokens, access.endpoints) == ({}, {}, {}, {})


@pytest.mark.parametrize("link", [False, True])
def test_a_folder_that_all_may_write_to(file: Path, tmp_path: Path, link: bool) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    target = folder / "access.toml"
    target.write_text("[users.u]\n")
    path = tmp_path / "link.toml" if link else target
    if link:
        path.symlink_to(target)
    folder.chmod(0o777)
    with pytest.raises(
        AccessError, match=re.escape(f"replace this file, and so grant itself any permission; run: chmod o-w {folder}")
    ):
        load_access(path)
    folder.chmod(0o1777)  # where only who owns a file may replace it
    assert set(load_access(path).users) == {"u"}


def test_every_line_is_found(file: Path) -> None:
    found = AccessFile(file)
    lines = EXAMPLE.split("\n")
    for path, text in [
        (("roles", "sender"), "[roles.sender]"),
        (("roles", "sender", "submit", 1), 'submit = ["mail.*", "resize"]'),
        (("users", "shop"), "[users.shop]"),
        (("users", "shop", "keys"), "keys = ["),
        (("users", "shop", "keys", 1), '    "shop2.key",'),
        (("endpoints", "tcp://127.0.0.1:5555", "user"), 'user = "chief"'),
    ]:
        assert lines[found.line(path) - 1] == text


def test_other_ways_to_write_it(file: Path) -> None:
    file.write_text(
        'roles = { a = { submit = ["x", "y"] } }\n'
        "\n"
        'users.one.roles = ["a"]\r\n'
        "users.one.submit = [ # all\n"
        "  '''\n"
        'z\'\'\',  """q""""""]\n'.replace('""""""', '"""')
        + '["users" . two]\n'
        'submit = [\n\n"b]#",\n"c"]\n'
    )
    found = AccessFile(file)
    assert found.access.users["one"].services[Permission.SUBMIT] == ("z", "q", "x", "y")
    assert found.access.users["two"].services[Permission.SUBMIT] == ("b]#", "c")
    wanted = {
        ("roles", "a", "submit"): 1,
        ("users", "one", "roles", 0): 3,
        ("users", "one", "submit", 0): 5,
        ("users", "one", "submit", 1): 6,
        ("users", "two"): 7,
        ("users", "two", "submit", 0): 10,
        ("users", "two", "submit", 1): 11,
    }
    assert {path: found.line(path) for path in wanted} == wanted


def test_the_file_in_the_handbook(file: Path) -> None:
    text = (Path(__file__).parents[3] / "titanic/README.md").read_text()
    (example,) = re.findall(r"^```toml\n(\[roles.*?)^```", text, re.MULTILINE | re.DOTALL)
    file.write_text(example.replace('"www-data"', str(os.getuid())))
    new_keys(file.parent, "nightly")
    access = load_access(file)
    assert {*access.users} == {"shop", "mailer", "prometheus", "nightly", "chief"}
    assert len(access.keys) == 4


U = "[users.u]\n"
WRONG = [
    # What is not TOML.
    ("[users", 1, "this is not TOML: Expected ']'"),
    ("[users.a]\nread = own", 2, "this is not TOML: Invalid value; correct the line"),
    ("[users.a]\nsubmit = ['x'\n", 2, "this is not TOML: Unclosed array"),
    ("[users.a]\n[users.a]", 2, "this is not TOML: Cannot declare ('users', 'a') twice"),
    (f"x = {'[' * 5000}", 1, "this TOML cannot be read: "),
    (f"x = {'9' * 5000}", 1, "this TOML cannot be read: "),
    # What nobody knows.
    ("[user.shop]", 1, "unknown [user]; did you mean users?"),
    ("\nopen = true", 2, "unknown [open]; here may be roles, users, endpoints"),
    (U + "\nsubmitt = ['x']", 3, "unknown [users.u] submitt; did you mean submit?"),
    (U + "password = 'x'", 2, "unknown [users.u] password; here may be keys, tokens, roles, submit,"),
    ("[roles.r]\nkeys = []", 2, "unknown [roles.r] keys; here may be submit, work, call, read,"),
    (U + "limits = { wating = 3 }", 2, "unknown [users.u] limits.wating; did you mean waiting?"),
    ("[endpoints.'ipc://x']\nuser = 'u'\nuid = [0]\n" + U, 3, 'unknown [endpoints."ipc://x"] uid; did you mean uids?'),
    # Values of the wrong kind.
    ("users = 3", 1, "users is a number; it must be tables, like [users.NAME]"),
    ("[users]\nshop = 'x'", 2, "[users.shop] is a string; it must be a table, like [users.NAME]"),
    ("[[users]]\nshop = 'x'", 1, "users is a list; it must be tables, like [users.NAME]"),
    (U + "submit = 'mail.*'", 2, '[users.u] submit is a string; it must be a list of strings, like ["mail.*"]'),
    (U + "work = ['a', 3]", 2, "[users.u] work contains a number; it must be a list of strings"),
    (U + "close = 'yes'", 2, "[users.u] close is a string; it must be true or false"),
    (U + "admin = 1", 2, "[users.u] admin is a number; it must be true or false"),
    (U + "read = 'mine'", 2, '[users.u] read is \'mine\'; it must be "own" or "all"; leave it out if nothing'),
    (U + "read = true", 2, '[users.u] read is true or false; it must be "own" or "all"'),
    (U + "roles = 'r'", 2, '[users.u] roles is a string; it must be a list of strings, like ["sender"]'),
    (U + "limits = 5", 2, "[users.u] limits is a number; write it like { waiting = 1000 }"),
    (U + "limits.bytes = -1", 2, "[users.u] limits.bytes is -1; it must be a whole number, 0 for no limit"),
    (U + "limits.bytes = '1GiB'", 2, "[users.u] limits.bytes is '1GiB'; it must be a whole number"),
    (U + "limits.messages = 0.5", 2, "[users.u] limits.messages is a number; it must be a whole number"),
    (U + f"limits.messages = 0x{'f' * 6000}", 2, "[users.u] limits.messages is a number; it must be a whole number"),
    (U + "limits.waiting = true", 2, "[users.u] limits.waiting is true or false; it must be a whole number"),
    (U + "read = 2026-01-01", 2, "[users.u] read is a time; it must be"),
    # Names.
    ("[users.'a b']", 1, "'a b' cannot be the name of a user; use 1 to 32 letters, digits, '_', '.' and '-'"),
    (f"[users.{'a' * 33}]", 1, f"'{'a' * 33}' cannot be the name of a user"),
    ("[users.'']", 1, "'' cannot be the name of a user"),
    ('[roles."a\\n"]', 1, "'a\\n' cannot be the name of a role"),
    (U + "roles = [\n'sendr']\n[roles.sender]", 3, "[users.u] roles: there is no role 'sendr'; did you mean sender?"),
    (U + "roles = ['x']", 2, "[users.u] roles: there is no role 'x'; define it, or remove it here"),
    # Patterns.
    (U + "submit = ['']", 2, "[users.u] submit: '' matches no service: service name is empty; write it like mail or"),
    (U + 'submit = ["a\\u0000"]', 2, "[users.u] submit: 'a\\x00' matches no service: service name has unprintable"),
    (U + "call = ['x', 'mail.[ab']", 2, "[users.u] call: 'mail.[ab' has a [ without a ]; write a set like"),
    # KeyPath and tokens.
    (U + f"keys = ['{KEY[:-1]}']", 2, "[users.u] keys: 'rq:r…' is neither a public key nor a file with one: a key"),
    (U + f"keys = [\n\n'{KEY[:-1]}~']", 4, "[users.u] keys: 'rq:r…' is neither a public key nor a file with one"),
    (U + "keys = ['shop.key']", 2, "[users.u] keys: FOLDER/shop.key: there is no such key file"),
    (U + "keys = ['shop.key_secret']", 2, "[users.u] keys: 'shop.key_secret' is a secret key file, which belongs to"),
    (U + "keys = ['\\n.key']", 2, "[users.u] keys: FOLDER/\\n.key: there is no such key file"),
    (U + "tokens = ['open sesame']", 2, "[users.u] tokens: a token is written as its hash: sha256: and 64 hexadecimal"),
    (U + f"tokens = ['{TOKEN[:-1]}']", 2, "[users.u] tokens: a token is written as its hash"),
    (
        U + f"keys = ['{KEY}']\n[users.v]\nkeys = [\n'{OTHER}',\n'{KEY}']",
        6,
        "[users.v] keys: user u has the same key, in line 2; create another key for one of them",
    ),
    (
        U + f"tokens = ['{TOKEN}']\n[users.v]\ntokens = ['{TOKEN.upper().replace('SHA', 'sha')}']",
        4,
        "[users.v] tokens: user u has the same token, in line 2; create another token for one of them",
    ),
    # Endpoints.
    (U + "[endpoints.'tcp://*:5555']\nuser = 'u'", 2, '[endpoints."tcp://*:5555"]: clients need no key'),
    (U + "[endpoints.'tcp://10.0.0.5:5555']\nuser = 'u'", 2, '[endpoints."tcp://10.0.0.5:5555"]: clients need no key'),
    (U + "[endpoints.'inproc://x']\nuser = 'u'", 2, '[endpoints."inproc://x"]: clients need no key there'),
    (U + "[endpoints.'ipc://']\nuser = 'u'", 2, '[endpoints."ipc://"]: clients need no key there'),
    ("[endpoints.'ipc://x']", 1, '[endpoints."ipc://x"] user is missing; write it like user = "shop"'),
    ("[endpoints.'ipc://x']\nuser = 3", 2, '[endpoints."ipc://x"] user is a number; write it like user = "shop"'),
    (U + "[endpoints.'ipc://x']\nuser = 'v'", 3, "[endpoints.\"ipc://x\"] user: there is no user 'v'; add it, or name"),
    (
        U + "[endpoints.'tcp://127.0.0.1:1']\nuser = 'u'\nuids = [0]",
        4,
        '[endpoints."tcp://127.0.0.1:1"] uids: only ipc:// endpoints can check uids; leave them out',
    ),
    (U + "[endpoints.'ipc://x']\nuser = 'u'\nuids = []", 4, '[endpoints."ipc://x"] uids names no user; write it like'),
    (U + "[endpoints.'ipc://x']\nuser = 'u'\nuids = 0", 4, '[endpoints."ipc://x"] uids is a number; write it like'),
    (
        U + "[endpoints.'ipc://x']\nuser = 'u'\nuids = ['no such one']",
        4,
        "[endpoints.\"ipc://x\"] uids: this machine has no user 'no such one'; give a name that `getent passwd` prints",
    ),
    (U + "expires = '2001-02-03'", 2, "[users.u] expires is '2001-02-03'; it must be a day, like 2027-06-30, or"),
    (U + "expires = 2001-02-03T04:05:06", 2, "[users.u] expires is a time; it must be a day, like 2027-06-30, or"),
    ("allow_lockout = 'yes'", 1, "[allow_lockout] is a string; it must be true or false"),
    (
        U + "[endpoints.'ipc://@x']\nuser = 'u'",
        2,
        '[endpoints."ipc://@x"]: any local process can connect to an abstract socket, which no directory '
        "protects; list the users that may: uids",
    ),
    (U + "[endpoints.'ipc://x']\nuser = 'u'\nuids = [-1]", 4, '[endpoints."ipc://x"] uids: -1 is not a system user'),
    (
        U + "[endpoints.'ipc://x']\nuser = 'u'\nuids = [true]",
        4,
        '[endpoints."ipc://x"] uids: true or false is not a system user',
    ),
]


@pytest.mark.parametrize(("text", "line", "fact"), WRONG)
def test_it_is_told_where_and_why(file: Path, text: str, line: int, fact: str) -> None:
    file.write_text(text)
    with pytest.raises(AccessError) as caught:
        load_access(file)
    fact = fact.replace("FOLDER", str(file.parent))
    assert str(caught.value).startswith(f"{file}:{line}: {fact}")
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)


def test_all_faults_are_told_at_once(file: Path) -> None:
    file.write_text("[users.a]\nx = 1\nread = 'none'\n[user]\n[roles.r]\nadmin = 3\n")
    with pytest.raises(AccessError) as caught:
        load_access(file)
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["2", "3", "4", "6"]
    file.write_text("[users.a]\n" + "".join(f"x{number} = 1\n" for number in range(5000)))
    with pytest.raises(AccessError) as caught:
        load_access(file)
    assert str(caught.value).splitlines()[-1] == f"{file}: and 4900 more"


def test_no_secret_is_told(file: Path) -> None:
    """A key or a token in the wrong place may be a secret one."""
    secret = OTHER
    for text in (
        f"[users.u]\nkeys = '{secret}'",
        f"[users.u]\nkeys = ['{secret}x']",
        f"[users.u]\nkeys = ['~{secret[:-1]}']",
        f"[users.u]\ntokens = ['{secret}']",
        f"[users.u]\ntokens = '{secret}'",
        f"[users.u]\nclose = '{secret}'",
    ):
        file.write_text(text)
        with pytest.raises(AccessError) as caught:
            load_access(file)
        assert secret[1:-1] not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    for wrong, fact in (
        (path, f"{path}: the access file cannot be read: No such file or directory; check its path"),
        (tmp_path, f"{tmp_path}: the access file cannot be read: Is a directory; check its path"),
        ("a\0b", "a\0b: the access file cannot be read: a path cannot contain NUL"),
    ):
        with pytest.raises(AccessError, match=re.escape(fact)):
            load_access(wrong)
    path.write_bytes(b"[users.a]\n# caf\xe9\n")
    with pytest.raises(AccessError, match=re.escape(f"{path}:2: this is not TOML: it is not UTF-8; correct the line")):
        load_access(path)
    path.write_bytes(b"")
    path.chmod(0o646)
    with pytest.raises(AccessError, match=re.escape(f"grant itself any permission; run: chmod o-w {path}")):
        load_access(path)


def test_names_of_users_of_the_machine(file: Path) -> None:
    mine = pwd.getpwuid(os.getuid())
    file.write_text(f"[users.u]\n[endpoints.'ipc://x']\nuser = 'u'\nuids = ['{mine.pw_name}']")
    assert load_access(file).uids == {"ipc://x": (mine.pw_uid,)}


def test_what_only_this_machine_reaches(file: Path) -> None:
    near = ["127.0.0.1:5555", "127.1.2.3:*", "localhost:5555", "[::1]:5555"]
    far = ["*:5555", "0.0.0.0:5555", "10.0.0.5:5555", "[::]:5555", "localhost.example:1", "127.0.0.1", "::1:5555", ""]
    for one in near:
        file.write_text(f"[users.u]\n[endpoints.'tcp://{one}']\nuser = 'u'")
        assert list(load_access(file).endpoints) == [f"tcp://{one}"]
    for one in far:
        file.write_text(f"[users.u]\n[endpoints.'tcp://{one}']\nuser = 'u'")
        with pytest.raises(AccessError, match="so other machines must not be able to reach it"):
            load_access(file)


PIECES = st.sampled_from(
    [
        *EXAMPLE.splitlines(keepends=True),
        *("[", "]", "{", "}", '"', "'", '"""', "'''", "=", ",", ".", "\n", "\\", "#", "\0", "é", "\r", "\ufeff"),
        *("users", "roles", "[users.x]\n", "keys", "limits", "= 5\n", "true", "nan", "1e999", "-0x1", "2026-01-01"),
        *('["a", [], {}]', "{a = {}}", "[[", "]]\n", "= [[]]\n", 'uids = ["\\u0000", "\\ud800"]\n', '"\\U0001F600"'),
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(PIECES, max_size=30),
    cut=st.integers(0, len(EXAMPLE)),
    end=st.integers(0, len(EXAMPLE)),
    noise=st.binary(max_size=4),
)
def test_whatever_is_in_it(file: Path, pieces: list[str], cut: int, end: int, noise: bytes) -> None:
    """It is understood, or refused with a line: nothing else ever comes of it."""
    content = "".join(pieces).encode(errors="surrogatepass")
    for text in (content, EXAMPLE.encode()[:cut] + content + noise + EXAMPLE.encode()[end:]):
        file.write_bytes(text)
        try:
            load_access(file)
        except AccessError as error:
            lines = str(error).splitlines()
            assert all(re.match(rf"{re.escape(str(file))}:\d+: .*; ", line) for line in lines), lines


def known(text: str) -> dict[KeyPath, int]:
    """The lines of a document's keys, found slowly: where it is cut off after a statement, it is still TOML."""
    found: dict[KeyPath, int] = {}
    begin = 0
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if begin or not re.match(r"\s*(#|$)", line):
            begin = begin or number
            try:
                document = tomllib.loads("\n".join(lines[:number]))
            except tomllib.TOMLDecodeError:
                continue
            for path in paths(document):
                found.setdefault(path, begin)
            begin = 0
    return found


def paths(table: dict[str, Any], above: KeyPath = ()) -> Iterator[KeyPath]:
    for key, value in table.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


STATEMENTS = st.sampled_from(
    [
        "[a]",
        "[a.b]",
        '[ "c d" . e ] # x',
        "",
        "# [g]",
        "  ",
        "k = 1",
        "a.b = 2",
        "'q'.r = [",
        '"x", ',
        "'y#[',",
        "] # end",
        's = """\n\\""" [z]\n"""',
        "t = '''\n[x]\n''''",
        't = """"""',
        'u = """a"""""',
        "v = {w = [1], x = {y = '}'}}",
        'l = ["]", "\\"#", \'"\']',
        "m = [ # [\n'p',\n'q', [1, 2], {n = '{'},\n]",
        "p = ['a',\n\n'b', # ]\n'c'\n]",
    ]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(STATEMENTS, max_size=12))
def test_lines_are_those_of_the_keys(statements: list[str]) -> None:
    """Statements are left out until it is TOML."""
    chosen: list[str] = []
    for at in range(len(statements)):
        for end in range(at + 1, min(at + 5, len(statements)) + 1):
            try:
                tomllib.loads("\n".join([*chosen, *statements[at:end]]))
            except tomllib.TOMLDecodeError:
                continue
            chosen += statements[at:end]
            break
    text = "\n".join(chosen)
    found = lines_of(text)
    assert {path: line for path, line in found.items() if not isinstance(path[-1], int)} == known(text)
    for path, line in found.items():
        if path[-2:] == ("p", 1):
            assert text.split("\n")[line - 1] == "'b', # ]"
