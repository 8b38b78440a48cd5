"""HTTPS, and users who come with a certificate: with a server, an authority and certificates that are real."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from support.certificates import Authority
from support.waiting import PATIENCE, until
from support.web_secured import TOKENS, Secured, secured

from broker import AccessError
from titanic.errors import CallerError
from titanic.web import protocol, serving
from titanic.web.auth.identity import Identity
from titanic.web.protocol import GatewayProtocol, Tls
from titanic.web.settings import WebSettings


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    one = Authority(tmp_path_factory.mktemp("authority"))
    for name in ("server", "alice", "nobody"):
        one.sign(name)
    return one


def files(authority: Authority, folder: Path) -> dict[str, Path]:
    """Settings of the gateway, with copies of the files."""
    for suffix in ("pem", "secret"):
        (folder / f"server.{suffix}").write_bytes((authority.folder / f"server.{suffix}").read_bytes())
    return {
        "tls_certificate": folder / "server.pem",
        "tls_key": folder / "server.secret",
        "client_ca": authority.certificate("authority"),
    }


@pytest.fixture
def scene(authority: Authority, tmp_path: Path) -> Iterator[Secured]:
    with secured(tmp_path / "access", **files(authority, tmp_path)) as one:
        one.write(alice=one.lines["alice"] + f'certificates = ["{authority.fingerprint("alice")}"]\n')
        yield one


def context(authority: Authority, name: str = "", folder: Path | None = None) -> ssl.SSLContext:
    """A client's; `name`: whose certificate it shows."""
    made = ssl.create_default_context(cafile=str(authority.certificate("authority")))
    if name:
        other = Authority(folder, "other") if folder is not None else authority
        if folder is not None:
            other.sign(name)
        made.load_cert_chain(other.certificate(name), other.secret(name))
    return made


def user_of(scene: Secured, made: ssl.SSLContext, **headers: str) -> str | int:
    """Who a gateway takes somebody for, or the status it answers with."""
    with httpx.Client(base_url=scene.url, verify=made, headers=headers, timeout=PATIENCE) as client:
        answer = client.get("/v1/session")
        return str(answer.json()["user"]) if answer.status_code == 200 else answer.status_code


def test_a_certificate_is_its_users(scene: Secured, authority: Authority, tmp_path: Path) -> None:
    assert scene.url.startswith("https://")
    alice = context(authority, "alice")
    until(lambda: user_of(scene, alice) == "alice")
    assert user_of(scene, context(authority)) == 401
    assert user_of(scene, context(authority, "nobody")) == 401
    with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
        user_of(scene, context(authority, "alice", tmp_path / "other"))  # signed by somebody else
    assert user_of(scene, alice, Authorization=f"Bearer {TOKENS['chief']}") == "chief"
    assert user_of(scene, alice, Authorization="Bearer x") == 401
    scene.write()
    until(lambda: user_of(scene, alice) == 401)


def test_a_connection_keeps_its_certificate_to_itself(scene: Secured, authority: Authority) -> None:
    """What a client says about its certificate in a header counts for nothing."""
    for name in ("X-SSL-Client-Cert", "X-Client-Cert", "Certificate", "X-Forwarded-Client-Cert"):
        assert user_of(scene, context(authority), **{name: authority.fingerprint("alice")}) == 401


def test_cookies_go_to_this_host_by_https_only(scene: Secured, authority: Authority) -> None:
    with httpx.Client(base_url=scene.url, verify=context(authority), timeout=PATIENCE) as browser:
        answer = browser.post("/login", data={"token": TOKENS["chief"]})
        said = answer.headers["set-cookie"]
        assert said.startswith("__Host-titanic")
        assert "Secure" in said
        assert browser.get("/v1/session").json()["user"] == "chief"
        assert "max-age=" in answer.headers["strict-transport-security"]


def test_forms_of_a_user_with_a_certificate_need_their_token(scene: Secured, authority: Authority) -> None:
    with httpx.Client(base_url=scene.url, verify=context(authority, "alice"), timeout=PATIENCE) as browser:
        until(lambda: browser.get("/v1/session").status_code == 200)
        assert browser.post("/logout", data={"x": "y"}).status_code == 403
        csrf = browser.get("/v1/session").json()["csrf"]
        assert browser.post("/logout", data={"csrf": csrf}).status_code == 303


def test_a_new_certificate_is_used_and_a_broken_one_is_not(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = files(authority, tmp_path)
    with secured(tmp_path / "access", **settings) as scene:
        where = urlsplit(scene.url)
        address = (where.hostname or "", where.port or 0)
        before = ssl.get_server_certificate(address)
        settings["tls_certificate"].write_text("nothing")
        until(lambda: "the previous certificate stays in use" in caplog.text)
        assert ssl.get_server_certificate(address) == before
        authority.sign("server")
        files(authority, tmp_path)
        until(lambda: ssl.get_server_certificate(address) != before)
        assert user_of(scene, context(authority)) == 401


def test_who_does_not_begin_is_sent_away(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "PATIENCE", 0.3)
    with secured(tmp_path / "access", **files(authority, tmp_path)) as scene, ExitStack() as stack:
        where = urlsplit(scene.url)
        for begin in (b"", b"\x16\x03\x01"):
            silent = stack.enter_context(socket.create_connection((where.hostname, where.port), timeout=30))
            silent.sendall(begin)
            assert silent.recv(1) == b""
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("tls", [False, True])
def test_who_reads_slowly_gets_all_of_a_large_answer_and_who_reads_nothing_is_sent_away(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    with secured(tmp_path / "access", **files(authority, tmp_path) if tls else {}) as scene:
        http = scene.program("alice")
        uuid = http.post("/v1/services/large/requests", content=b"x").json()["uuid"]
        lease = http.post("/v1/services/large:take?wait=10").headers["titanic-lease"]
        assert http.post(f"/v1/leases/{lease}:done", content=bytes(30 << 20)).status_code == 204
        where = urlsplit(scene.url)
        head = f"Host: {where.netloc}\r\nAuthorization: {http.headers['authorization']}\r\nConnection: "
        connections: set[GatewayProtocol] = scene.web._server.server_state.connections  # type: ignore[assignment]
        for periods, option in ((3, "close"), (0, "close"), (0, "keep-alive")):
            monkeypatch.setattr(protocol, "UNREAD", PATIENCE if periods else 1.0)  # a reader is checked by hand
            before = connections.copy()
            with ExitStack() as stack:
                one = stack.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
                one.connect((where.hostname, where.port))
                if tls:
                    one = stack.enter_context(context(authority).wrap_socket(one, server_hostname=where.hostname))
                (peer,) = until(lambda before=before: connections - before)
                one.sendall(f"GET /v1/requests/{uuid}/reply?wait=10 HTTP/1.1\r\n{head}{option}\r\n\r\n".encode())
                if isinstance(one, ssl.SSLSocket) and option == "keep-alive":
                    assert one.recv(1)
                    one.setblocking(False)
                    with suppress(OSError):
                        one.unwrap()
                until(lambda peer=peer: peer._unread)
                read = 0
                for _ in range(periods):
                    taken, timer, end = peer._answers.taken(), peer._unread, read + (128 << 10)
                    while read < end:
                        read += len(one.recv(16 << 10))
                    until(lambda peer=peer, taken=taken: peer._answers.taken() > taken)
                    peer.loop.call_soon_threadsafe(peer._await_reader, taken)
                    until(lambda peer=peer, timer=timer: peer._unread is not timer or peer not in connections)
                until(lambda peer=peer, periods=periods: periods or peer not in connections)
                with suppress(ConnectionError, ssl.SSLError):
                    while some := one.recv(1 << 20):
                        read += len(some)
                assert (read > 30 << 20) == (periods > 0)


@pytest.mark.parametrize("fault", ["tls_certificate", "tls_key", "client_ca"])
def test_files_that_cannot_be_used_are_told_at_the_start(authority: Authority, tmp_path: Path, fault: str) -> None:
    settings = files(authority, tmp_path)
    settings[fault] = tmp_path / "none"
    every = WebSettings(endpoint=("tcp://127.0.0.1:1",), access=tmp_path, keys=tmp_path, **settings)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match=r"cannot use TLS; .*none.*No such file"):
        Tls(every)


def test_a_key_with_a_password_is_refused_and_not_asked_for(authority: Authority, tmp_path: Path) -> None:
    settings = files(authority, tmp_path)
    settings["tls_key"] = authority.encrypted("server", tmp_path)
    with pytest.raises(CallerError, match=r"cannot use TLS; .*password"):
        Tls(WebSettings(endpoint=("x",), access=tmp_path, keys=tmp_path, **settings))  # type: ignore[arg-type]


def test_a_broken_access_file_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "access.toml").write_text("x = 1")
    with pytest.raises(AccessError, match=r"access\.toml:1: unknown"):
        Identity(WebSettings(endpoint=("x",), access=tmp_path / "access.toml", keys=tmp_path))
