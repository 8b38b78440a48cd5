"""Users of a real server, with keys: what each gets of his own and of others' requests, integrated and apart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.secured import curve_of, raw_socket, told
from support.serving import QUICK, serving
from support.waiting import until

from broker import NOBODY, Access, AccessError, BrokerConfig, BrokerKind, Reach, User, Worker, load_secret, new_keys
from titanic import Client, Forbidden, Server, UnknownRequest
from titanic.server import server_access
from titanic.server.mdp_worker import user_in
from titanic.server.server_access import ServerAccess, new_broker

ACCESS = """
[roles.sender]
submit = ["mail.*"]
read = "own"
close = true
[users.shop]
roles = ["sender"]
keys = ["shop.key"]
[users.other]
roles = ["sender"]
keys = ["other.key"]
[users.small]
submit = ["mail.*"]
keys = ["small.key"]
limits = { waiting = 1 }
[users.audit]
read = "all"
keys = ["audit.key"]
[users.root]
admin = true
keys = ["root.key"]
[users.works]
work = ["mail.*"]
keys = ["works.key"]
[users.queue]
work = ["titanic.*"]
call = ["*"]
keys = ["queue.key"]
"""
"""`queue` is a Titanic apart from its broker."""


@dataclass
class House:
    """A server with access control, and the keys of its users."""

    server: Server
    endpoint: str
    folder: Path
    refused: Callable[[], dict[tuple[str, str], int]]
    """What users lacked a permission for, by user and action."""
    integrated: bool = False
    """Whether the broker is the server's own."""

    def client(self, name: str) -> Client:
        key, server_key = self.folder / f"{name}.key_secret", self.folder / "server.key"
        return Client(self.endpoint, timeout=30, key=key, server_key=server_key)

    def worker(self, handler: Callable[[list[bytes]], list[bytes]]) -> Worker:
        pair, server = load_secret(self.folder / "works.key_secret"), load_secret(self.folder / "server.key_secret")
        return Worker("mail.send", handler, self.endpoint, config=QUICK, key=curve_of(pair, server.public))

    def raw(self, name: str, service: bytes, *body: bytes) -> list[bytes]:
        """The body of the answer to somebody's message."""
        pair, server = load_secret(self.folder / f"{name}.key_secret"), load_secret(self.folder / "server.key_secret")
        with raw_socket(self.endpoint, pair, server=server.public) as socket:
            socket.send_multipart([b"MDPC02", b"\x01", service, *body])
            frames = told(socket)
            assert frames[:3] == [b"MDPC02", b"\x03", service]
            return frames[3:]


@pytest.fixture(params=["integrated", "apart"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    for name in ("server", "shop", "other", "small", "audit", "root", "works", "queue"):
        new_keys(tmp_path, name)
    path, key = tmp_path / "access.toml", tmp_path / "server.key_secret"
    path.write_text(ACCESS)
    if request.param == "integrated":
        with serving(tmp_path, access=path, key=key) as server:
            endpoint = server.endpoints[0]
            yield House(server, endpoint, tmp_path, lambda: dict(server.snapshot().forbidden), integrated=True)
        return
    broker = new_broker(BrokerConfig(), ServerAccess(path, key), open=False)
    endpoint = broker.bind("tcp://127.0.0.1:*")
    keys = {"key": tmp_path / "queue.key_secret", "server_key": str(tmp_path / "server.key")}
    with broker, serving(tmp_path, broker=endpoint, **keys) as server:
        until(lambda: server.ready)
        yield House(server, endpoint, tmp_path, lambda: broker.refusals() | dict(server.snapshot().forbidden))


def test_a_running_request_of_another_user_is_not_killed(house: House) -> None:
    """Nor one that its owner has closed, whose owner is not known any more."""
    handling, go = threading.Event(), threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        handling.set()
        assert go.wait(60)
        return frames

    with (
        house.worker(work),
        house.client("shop") as shop,
        house.client("other") as other,
        house.client("root") as root,
    ):
        uuid = shop.submit("mail.send", b"1")
        assert handling.wait(60)
        (flight,) = house.server.dispatcher.core.flights.values()
        assert other.close(uuid, kill=True) == []
        assert not flight.closed
        assert shop.close(uuid) == []
        assert other.close(uuid, kill=True) == []
        assert not flight.kill
        assert root.close(uuid, kill=True) == [uuid]
        assert flight.kill
        go.set()


def test_each_user_has_his_own(house: House) -> None:
    with house.client("shop") as shop, house.client("other") as other, house.client("audit") as audit:
        his = shop.submit("mail.send", b"1", key="k")
        theirs = other.submit("mail.send", b"2", key="k")
        assert his != theirs
        assert shop.reply(his) is None
        for forbidden in (other.reply, other.show, lambda uuid: other.wait(uuid, 30)):
            with pytest.raises(UnknownRequest):
                forbidden(his)
        assert other.close(his, kill=True) == []
        assert other.retry(his) == 0
        assert audit.show(his)["state"] == "waiting"
        assert [row["uuid"] for row in other.list()[0]] == [theirs]
        assert [row["uuid"] for row in shop.list(state="waiting")[0]] == [his]
        assert {row["uuid"]: row.get("owner") for row in audit.list()[0]} == {his: "shop", theirs: "other"}
        source = "127.0.0.1" if house.integrated else None
        assert [row.get("source") for row in (shop.show(his), audit.show(his), other.show(theirs))] == [source] * 3
        assert shop.find(["k"])[0] == {"k": his}
        with pytest.raises(Forbidden, match=r"user 'shop' may not submit to 'upper'; it needs submit = \[\"upper\"\]"):
            shop.submit("upper", b"x")
        with pytest.raises(Forbidden, match="user 'audit' may not submit"):
            audit.submit("mail.send", b"x")
        with pytest.raises(Forbidden, match="user 'shop' may not see statistics"):
            shop.stats()
        assert audit.stats()["store"]["requests"] == 2
        with pytest.raises(Forbidden, match="user 'audit' may not close requests; it needs close = true"):
            audit.close(his)
        shop.close(his)
        with pytest.raises(UnknownRequest):
            audit.show(his)
    with house.client("root") as root:
        assert root.purge(state="waiting") == 1
        assert root.archive(register=True)["registered"] is True
        told = {(row["user"], row["action"]): row["count"] for row in root.stats(services=True)["refusals"]}
        assert told[("other", "titanic.close")] >= 1
    for key in (("other", "titanic.reply"), ("other", "titanic.close"), ("other", "titanic.admin")):
        assert house.refused()[key] >= 1
    for key in (("shop", "titanic.submit"), ("shop", "titanic.stats"), ("audit", "titanic.submit")):
        assert house.refused()[key] == 1


def test_who_is_notified_of_a_failure_needs_the_permission_to_submit(house: House) -> None:
    with house.client("shop") as shop:
        assert shop.show(shop.submit("mail.send", b"1", on_failed="mail.failed"))["on_failed"] == "mail.failed"
        with pytest.raises(Forbidden, match=r"user 'shop' may not submit to 'upper'; it needs submit = \[\"upper\"\]"):
            shop.submit("mail.send", b"1", on_failed="upper")


def test_nobody_is_told_how_others_requests_end(house: House) -> None:
    """Neither while a worker has one, nor when its reply is sent with its commit."""
    begun, go = threading.Event(), threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        begun.set()
        assert go.wait(60)
        return frames

    found: list[list[bytes]] = []
    with house.worker(work), house.client("shop") as shop, house.client("other") as other:
        uuid = shop.submit("mail.send", b"secret")
        assert begun.wait(60)
        with pytest.raises(UnknownRequest):
            other.wait(uuid, 60)
        waiting = threading.Thread(target=lambda: found.append(shop.wait(uuid, 60)))
        waiting.start()
        until(lambda: len(house.server.dispatcher.waiters) == 1)
        go.set()
        waiting.join()
        assert found == [[b"secret"]]
        with pytest.raises(UnknownRequest):
            other.reply(uuid)


def test_statuses_and_limits(house: House) -> None:
    refusal = b"forbidden: user 'small' may not submit to 'upper'; it needs submit = [\"upper\"]"
    assert house.raw("small", b"titanic.request", b"upper", b"x") == [b"400 " + refusal, b"forbidden"]
    assert house.raw("small", b"titanic.submit", b"{}", b"upper", b"x") == [b"403 " + refusal]
    assert house.raw("small", b"titanic.submit", b"{", b"mail.send", b"x")[0].startswith(b"400 options are not JSON")
    status, uuid = house.raw("small", b"titanic.request", b"mail.send", b"x")
    assert status == b"200"
    full = [b"500 user full: 1 requests are waiting for user 'small'; its limit is 1"]
    assert house.raw("small", b"titanic.request", b"mail.send", b"x") == full
    for service in (b"titanic.reply", b"titanic.close"):
        assert house.raw("small", service, uuid)[0].startswith(b"400 forbidden: "), "not even what is his"
    assert house.raw("small", b"titanic.wait", b"0", uuid)[0].startswith(b"403 forbidden: ")
    assert house.raw("root", b"titanic.reply", uuid) == [b"300"]
    assert house.raw("small", b"titanic.list", b"{}")[0].startswith(b"403 forbidden: ")
    assert house.raw("audit", b"titanic.admin", b'{"do": "archive"}')[0].startswith(b"403 forbidden: ")


OURS, SECURED, FOREIGN = (
    BrokerKind("0.2", ours=True),
    BrokerKind("0.2", ours=True, access=True),
    BrokerKind("0.1", ours=False),
)
NUMBER = b"%016x" % 7
SHOP = User("shop", read=Reach.OWN)


@pytest.mark.parametrize("kind", [None, OURS, SECURED, FOREIGN])
def test_the_broker_says_who_asks_before_it_is_known_which_one_is_there(kind: BrokerKind | None) -> None:
    found = user_in(NUMBER + b" " + SHOP.to_json(), kind)
    assert found is not None
    assert (found.name, found.read) == ("shop", Reach.OWN)


@pytest.mark.parametrize("kind", [None, OURS, FOREIGN])
def test_without_access_control_all_is_allowed(kind: BrokerKind | None) -> None:
    assert user_in(NUMBER, kind) is None
    assert user_in(b"", kind) is None


@pytest.mark.parametrize(
    "client",
    [b"", NUMBER, NUMBER + b" ", NUMBER + b" {}", NUMBER + b' {"user": "root", "admin": true}', b" \xff", b" []"],
)
def test_whoever_is_not_named_at_a_broker_with_access_control_is_nobody(client: bytes) -> None:
    assert user_in(client, SECURED) is NOBODY


def test_frames_of_foreign_brokers_may_be_anything() -> None:
    assert user_in(b"a b", FOREIGN) is None
    assert user_in(b"a b", OURS) is NOBODY


ADMINS = "[users.root]\nadmin = true\n[users.shop]\n[users.mail]\n"


@pytest.fixture
def control(tmp_path: Path) -> ServerAccess:
    new_keys(tmp_path, "server")
    (tmp_path / "access.toml").write_text(ADMINS)
    return ServerAccess(tmp_path / "access.toml", tmp_path / "server.key_secret")


@pytest.mark.parametrize(
    ("text", "fact"), [("[users.shop]\n", "no user would have admin = true"), ("", "no users, so")]
)
def test_the_last_administrator_stays_unless_the_file_says_so(control: ServerAccess, text: str, fact: str) -> None:
    path = control._path
    path.write_text(text)
    with pytest.raises(AccessError, match=fact):
        control.read_again()
    path.write_text("allow_lockout = true\n" + text)
    assert "root" not in control.read_again().users


def test_removed_users_are_a_warning(control: ServerAccess, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    control.swap(load(control, ADMINS + "[users.more]\n"))
    control.swap(load(control, "[users.root]\nadmin = true\n"))
    assert [(one.levelname, one.getMessage().partition(": ")[2]) for one in caplog.records] == [
        ("INFO", "added more"),
        ("WARNING", "removed mail more shop"),
    ]


def load(control: ServerAccess, text: str) -> Access:
    control._path.write_text(text)
    return control.read_again()


def test_a_file_that_is_being_written_is_waited_for(control: ServerAccess) -> None:
    looks = 0
    real = server_access.state_of

    def write_on(path: Path) -> tuple[int, ...]:
        nonlocal looks
        looks += 1
        if looks < 4:
            path.write_text(ADMINS[: 10 * looks])
        elif looks == 4:
            path.write_text(ADMINS)
        return real(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_access, "state_of", write_on)
        assert set(control.read_again().users) == {"root", "shop", "mail"}
        patch.setattr(server_access, "state_of", lambda path: (time.monotonic_ns(),))
        patch.setattr(server_access, "POLL_INTERVAL", 0.001)
        with pytest.raises(AccessError, match="still changing after"):
            control.read_again()
