"""`titanic access`: whether a file is right, and which line decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_titanic import here

from broker import AccessFile, hash_token
from broker.access.users import Permission
from titanic.cli.access import ACTIONS

FILE = """\
[roles.sender]
submit = ["mail.*"]
read = "own"
[users.shop]
roles = ["sender"]
keys = ["shop.key"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    assert here("keys", "new", "shop", "--dir", tmp_path).code == 0
    path = tmp_path / "access.toml"
    path.write_text(FILE)
    return path


def test_a_file_that_is_right(file: Path) -> None:
    done = here("access", "check", file)
    assert (done.code, done.err) == (0, "")
    assert done.line == f"{file}: 1 user, 1 role, 1 key, 0 tokens, 0 endpoints: no errors"
    counts = {"users": 1, "roles": 1, "keys": 1, "tokens": 0, "endpoints": 0}
    assert here("access", "check", file, "--json").json == counts


def test_certificates_are_counted_where_there_are_any(file: Path) -> None:
    file.write_text(FILE + f"certificates = ['sha256:{'0a' * 32}']\n")
    assert here("access", "check", file).line.endswith("0 tokens, 0 endpoints, 1 certificate: no errors")
    assert here("access", "check", file, "--json").json["certificates"] == 1


def test_each_mistake_on_a_line(file: Path) -> None:
    file.write_text(FILE + "admin = 1\nlimits.x = 3\n")
    done = here("access", "check", file)
    assert (done.code, done.out) == (1, b"")
    assert done.err.splitlines() == [
        f"{file}:7: [users.shop] admin is a number; it must be true or false",
        f"{file}:8: unknown [users.shop] limits.x; here may be waiting, bytes, messages, connections",
    ]
    missing = here("access", "check", file.parent / "none")
    assert missing.code == 2
    assert missing.err.startswith(f"{file.parent}/none: the access file cannot be read: No such file or directory; ")


@pytest.mark.parametrize(
    ("question", "code", "answer"),
    [
        ("shop submit mail.x", 0, ['{file}:2: submit = ["mail.*"]', "allowed: 'mail.*' matches mail.x"]),
        ("shop read", 0, ['{file}:3: read = "own"', "allowed: shop reads its own requests"]),
        (
            "shop work mail.x",
            1,
            [
                "{file}:4: [users.shop]",
                'not allowed: no line allows it; add work = ["mail.x"] here or to one of its roles',
            ],
        ),
        ("shpo read", 1, ["{file}: no line", "not allowed: there is no user 'shpo'; did you mean shop?"]),
    ],
)
def test_the_line_that_decides(file: Path, question: str, code: int, answer: list[str]) -> None:
    done = here("access", "test", *question.split(), "--access", file)
    assert (done.code, done.err) == (code, "")
    assert done.out.decode().splitlines() == [line.format(file=file) for line in answer]
    told = here("access", "test", *question.split(), "--json", TITANIC_ACCESS=str(file))
    assert told.code == code
    assert told.json["allowed"] is (code == 0)
    assert told.json["file"] == str(file)
    assert f"llowed: {told.json['reason']}" in answer[1]
    assert answer[0].endswith(f":{told.json['line']}: {told.json['text']}") or not told.json["line"]


def test_questions_that_cannot_be(file: Path) -> None:
    for arguments, fact in (
        (("shop", "submit"), "submit needs a service: service name is empty; name one"),
        (("shop", "write"), "'write' is not one of 'submit', 'work',"),
    ):
        done = here("access", "test", *arguments, "--access", file)
        assert (done.code, done.out) == (2, b"")
        assert fact in done.err
    assert "missing option '--access'" in here("access", "test", "shop", "read").err
    file.write_text(FILE + "x = 1\n")
    done = here("access", "test", "shop", "read", "--access", file)
    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith(f"titanic: {file}:7: unknown [users.shop] x; ")


def test_every_permission_can_be_asked_for() -> None:
    assert [one.value for one in Permission] == list(ACTIONS)


CHANGED = """\
# of mail
[roles.sender]
submit = ["mail.*"]

# the shop
[users.shop]
read = "own"
keys = [
    "shop.key",  # first
    "sp0])R=zQCU9/bvY2{BuT.Zb*@u2xy2o:oBIsK+H",
]
roles = ["sender"]
# its limits
[users.shop.limits]
waiting = 3

# others
[users."op.a"]
admin = true
[endpoints."ipc:///x"]
user = "shop"
"""


def test_users_that_may(file: Path) -> None:
    file.write_text(CHANGED)
    done = here("access", "who", "submit", "mail.x", "--access", file)
    assert done.out.decode().splitlines() == [
        "USER  LINE  REASON",
        "shop  3     'mail.*' matches mail.x",
        "op.a  19    op.a is an admin, which may submit to every service",
    ]
    assert [one["user"] for one in here("access", "who", "audit", "--json", "--access", file).json] == ["op.a"]
    assert "submit needs a service" in here("access", "who", "submit", "--access", file).err


def test_expiry_is_shown_and_compared(file: Path) -> None:
    old = file.with_name("old.toml")
    old.write_text(CHANGED)
    file.write_text(CHANGED.replace("admin = true\n", "admin = true\nexpires = 2200-06-30\n"))
    where = ("--access", file)
    lines = here("access", "who", "submit", "mail.x", *where).out.decode().splitlines()
    assert [line.split()[-1] for line in lines] == ["EXPIRES", "never", "2200-06-30"]
    found = here("access", "who", "submit", "mail.x", "--json", *where).json
    assert [one["expires"] for one in found] == [None, "2200-06-30"]
    assert here("access", "diff", old, file).line == "+ op.a: expires 2200-06-30"


def test_a_user_is_added(file: Path) -> None:
    """Nothing else changes; a file that is not there is made."""
    file.chmod(0o640)
    add = ("access", "add", "op.a", "admin = true", "limits.waiting = 3", "--access", file)
    assert here(*add).line == (
        f"{file}: user op.a added with the key {file.parent}/op.a.key_secret; now reload the server"
    )
    assert file.read_text() == f'{FILE}\n[users."op.a"]\nkeys = ["op.a.key"]\nadmin = true\nlimits.waiting = 3\n'
    assert file.stat().st_mode & 0o777 == 0o640
    assert here(*add).err == (
        f"titanic: {file} already has a user op.a; change its lines, or replace its key: titanic access rotate\n"
    )
    made = here("access", "add", "ann", "--token", "--json", "--access", file).json
    assert (made["user"], made["secret_file"]) == ("ann", f"{file.parent}/ann.key_secret")
    access = AccessFile(file).access
    assert access.keys[made["key"]].name == "ann"
    assert access.tokens[hash_token(made["token"]).removeprefix("sha256:")].name == "ann"

    new = file.with_name("new.toml")
    done = here("access", "add", "bob", "--token", "--access", new)
    assert len(done.out.decode().splitlines()) == 2
    assert (list(AccessFile(new).users), new.stat().st_mode & 0o7) == (["bob"], 0)


def test_a_user_with_a_mistake_is_not_added(file: Path) -> None:
    """Neither are keys left behind."""
    there = sorted(file.parent.iterdir())
    for line, fault in (
        ("admn = true", "did you mean admin?"),
        ("admin = ", "nvalid value"),
        ("keys = []", "overwrite"),
    ):
        done = here("access", "add", "ann", line, "--access", file)
        assert (done.code, fault in done.err) == (1, True), done.err
    assert here("access", "add", "../ann", "--access", file).err.startswith("titanic: '../ann' cannot be the name")
    assert (file.read_text(), sorted(file.parent.iterdir())) == (FILE, there)


def test_changes_are_printed_as_json(file: Path) -> None:
    file.write_text(CHANGED)
    changed = here("access", "rotate", "shop", "--json", "--access", file).json
    assert (changed["keys"][2:], changed["secret_file"]) == (["shop-2.key"], f"{file.parent}/shop-2.key_secret")
    finished = here("access", "rotate", "shop", "--finish", "--json", "--access", file).json
    assert finished == {"user": "shop", "keys": ["shop-2.key"], "secret_file": None}
    revoked = here("access", "revoke", "shop", "--json", "--access", file).json
    assert revoked == {"user": "shop", "endpoints": ["ipc:///x"]}
    settings = file.with_name("titanic.toml")
    settings.write_text(SETTINGS)
    enable = ("access", "enable", settings, "--json", "--access", file)
    for is_changed in (True, False):
        assert here(*enable).json == {"file": str(settings), "changed": is_changed}


def test_a_key_is_rotated(file: Path) -> None:
    """Nothing else changes."""
    file.write_text(CHANGED)
    file.chmod(0o640)
    old = file.with_name("old.toml")
    old.write_text(CHANGED)
    rotate = ("access", "rotate", "shop", "--access", file)
    assert (
        here(*rotate).line
        == f"{file}: user shop also has the key {file.parent}/shop-2.key_secret; now reload the server"
    )
    added = here("access", "diff", old, file, "--json").json
    assert (added["removed"], [one["user"] for one in added["added"]]) == ([], ["shop"])
    last = '"sp0])R=zQCU9/bvY2{BuT.Zb*@u2xy2o:oBIsK+H"'
    assert file.read_text() == CHANGED.replace(last, f'{last}, "shop-2.key"')
    assert file.stat().st_mode & 0o777 == 0o640
    assert here(*rotate, "--finish").code == 0
    begin, end = CHANGED.index('[\n    "shop.key"'), CHANGED.index('roles = ["sender"]\n#')
    assert file.read_text() == f'{CHANGED[:begin]}["shop-2.key"]\n{CHANGED[end:]}'
    assert "has no older key to remove" in here(*rotate, "--finish").err
    assert here(*rotate).code == 0
    assert (file.parent / "shop-3.key").exists()


def test_a_key_is_rotated_below_a_long_comment(file: Path) -> None:
    """It is read once; from each of its lines to its end, it would take over 10 minutes."""
    text = FILE.replace("[users.shop]\n", "[users.shop]\n" + "# a line of a comment\n" * 20_000)
    file.write_text(text)
    assert here("access", "rotate", "shop", "--access", file).code == 0
    assert file.read_text() == text.replace('"shop.key"', '"shop.key", "shop-2.key"')


def test_logins_are_counted_and_compared(file: Path) -> None:
    old = file.with_name("old.toml")
    old.write_text(FILE)
    file.write_text(FILE + "login = ['ann@example.org']\n")
    assert here("access", "check", file, "--json").json["logins"] == 1
    (line,) = here("access", "diff", old, file).out.decode().splitlines()
    assert line.endswith(": login ann@example.org")


def test_a_user_is_revoked(file: Path) -> None:
    file.write_text(CHANGED)
    old = file.with_name("old.toml")
    old.write_text(CHANGED)
    assert here("access", "revoke", "shop", "--access", file).code == 0
    assert file.read_text() == CHANGED[: CHANGED.index("# the shop")] + '# others\n[users."op.a"]\nadmin = true\n'
    gone = here("access", "diff", old, file).out.decode().splitlines()
    assert [line for line in gone if " key " not in line] == [
        "- shop: endpoint ipc:///x",
        "- shop: limit waiting 3",
        "- shop: read own",
        "- shop: submit mail.*",
    ]
    assert len(gone) == 6
    assert here("access", "revoke", "shop", "--access", file).err == f"titanic: {file} has no user shop; it has op.a\n"


def test_a_link_stays_one_and_its_file_is_changed(file: Path) -> None:
    file.write_text(CHANGED)
    link = file.with_name("link.toml")
    link.symlink_to(file)
    assert here("access", "revoke", "shop", "--access", link).code == 0
    assert link.is_symlink()
    assert "[users.shop]" not in file.read_text()


def test_a_file_that_is_not_understood_is_not_changed(file: Path) -> None:
    """Neither are keys left behind."""
    text = 'users.shop = {keys = ["shop.key"]}\n[users.op]\n'
    file.write_text(text)
    there = sorted(file.parent.iterdir())
    for action in ("rotate", "revoke"):
        done = here("access", action, "shop", "--access", file)
        assert (done.code, "change the file by hand" in done.err) == (1, True)
    file.write_text(FILE)
    done = here("access", "revoke", "shop", "--access", file)
    assert (done.code, done.err.startswith(f"titanic: {file}:1: there are no users")) == (1, True)
    assert (file.read_text(), sorted(file.parent.iterdir())) == (FILE, there)


@pytest.mark.parametrize("command", ["check", "test"])
def test_help(command: str) -> None:
    done = here("access", command, "--help")
    assert done.code == 0
    assert b"Example:" in done.out
    assert b"--json prints" in done.out
    assert b"..." not in here("access", "--help").out.partition(b"Commands:")[2]


def test_completion_knows_the_actions() -> None:
    env = {"_TITANIC_COMPLETE": "bash_complete", "COMP_WORDS": "titanic access test shop ", "COMP_CWORD": "4"}
    assert here(**env).out.decode().split() == [f"plain,{action}" for action in ACTIONS]


SETTINGS = "# mine\n[serve]\n#access = '/x'\nstore = 'S'\n[broker]\nkey = 'own'\n[work]\njobs = 3\n"


def test_access_control_is_turned_on_in_the_settings(file: Path) -> None:
    settings = file.parent / "titanic.toml"
    settings.write_text(SETTINGS)
    settings.chmod(0o640)
    done = here("access", "enable", settings, "--access", file)
    assert (done.code, done.line) == (0, f"{settings}: access control takes effect at the next start")
    key = "/run/credentials/titanic.service/server.key_secret"
    on = f'access = "{file}"\n'
    assert settings.read_text() == SETTINGS.replace("[serve]\n", f'[serve]\n{on}key = "{key}"\n').replace(
        "[broker]\n", f"[broker]\n{on}"
    )
    assert settings.stat().st_mode & 0o777 == 0o640
    assert "nothing to do" in here("access", "enable", settings, "--access", file).line
    settings.write_text("store = 'S'\n")
    assert here("access", "enable", settings, "--access", file).code == 0
    assert settings.read_text().endswith(f'\n[serve]\n{on}key = "{key}"\n')
    assert [one.name for one in file.parent.glob(".*")] == []


def test_access_control_is_not_turned_on_with_a_faulty_file(file: Path) -> None:
    settings = file.parent / "titanic.toml"
    settings.write_text("[serve]\n")
    assert here("access", "enable", settings, "--access", file.parent / "none").code == 2
    file.write_text("[users.a]\nx = 1\n")
    assert here("access", "enable", settings, "--access", file).code == 1
    settings.write_text("serve = 3\n")
    file.write_text("[users.a]\n")
    assert "cannot be changed" in here("access", "enable", settings, "--access", file).err
    assert settings.read_text() == "serve = 3\n"
