"""Webhooks go to HTTPS servers whose certificate is in order, and to no other; never in clear."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest
from support.certificates import Authority
from support.waiting import until
from support.web_hooks import Hooks, Receiver

from titanic import Client
from titanic.protocol.documents import RequestInfo


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    one = Authority(tmp_path_factory.mktemp("authority"))
    one.sign("server")
    one.sign("elsewhere", names="DNS:elsewhere.example")
    return one


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    one = Authority(tmp_path_factory.mktemp("stranger"), "stranger")
    one.sign("server")
    return one


@pytest.fixture
def trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate("authority")))


Secure = Callable[[Authority, str], Receiver]


@pytest.fixture
def secure() -> Iterator[Secure]:
    """Makes receivers with these certificates."""
    running = []

    def begin(authority: Authority, name: str) -> Receiver:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.certificate(name), authority.secret(name))
        receiver = Receiver(context)
        thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,))
        thread.start()
        running.append((receiver, thread))
        return receiver

    yield begin
    for receiver, thread in running:
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()


def failed(client: Client) -> list[RequestInfo]:
    return client.list(state="failed", service="web.delivery")[0]


def end(client: Client) -> None:
    client.submit("web.ended", b'{"uuid": "01a1ff29e82d7a2da099783c4f481113", "service": "mail", "state": "done"}')


def test_a_certificate_that_is_in_order(
    hooks: Hooks, client: Client, authority: Authority, secure: Secure, trusted: None
) -> None:
    receiver = secure(authority, "server")
    assert receiver.url.startswith("https://127.0.0.1:")
    hooks.put(receiver.url)
    hooks.put(receiver.url.replace("127.0.0.1", "localhost"))
    end(client)
    with hooks.deliver():
        until(lambda: len(receiver.told) == 2)
    hosts = {told.headers["Host"].partition(":")[0] for told in receiver.told}
    assert hosts == {"127.0.0.1", "localhost"}


@pytest.mark.parametrize(
    ("who", "name", "reason"),
    [
        ("stranger", "server", "its certificate is not trusted: unable to get local issuer certificate"),
        ("stranger", "stranger", "its certificate is not trusted: self-signed certificate"),
        ("authority", "elsewhere", "its certificate is not trusted: IP address mismatch"),
    ],
)
def test_one_that_is_not(
    hooks: Hooks,
    client: Client,
    secure: Secure,
    trusted: None,
    request: pytest.FixtureRequest,
    who: str,
    name: str,
    reason: str,
) -> None:
    receiver = secure(request.getfixturevalue(who), name)
    hooks.put(receiver.url)
    end(client)
    with hooks.deliver():
        until(lambda: failed(client))
    (row,) = failed(client)
    assert reason in row["reason"].replace("self signed", "self-signed")
    assert row["attempts"] == 3
    assert receiver.told == []


def test_it_is_tried_again_until_the_certificate_is_in_order(
    hooks: Hooks,
    client: Client,
    authority: Authority,
    stranger: Authority,
    secure: Secure,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receiver = secure(stranger, "server")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate("authority")))
    hooks.put(receiver.url)
    end(client)
    with hooks.deliver():
        until(lambda: failed(client))
        monkeypatch.setenv("SSL_CERT_FILE", str(stranger.certificate("stranger")))
        client.retry(failed(client)[0]["uuid"])
        until(lambda: receiver.told)
    assert len(receiver.told) == 1


def test_a_server_without_tls_is_told_nothing(hooks: Hooks, client: Client, trusted: None) -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    heard.append(connection.recv(1 << 16))
                    connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        thread = threading.Thread(target=listen)
        thread.start()
        hooks.put(f"https://127.0.0.1:{server.getsockname()[1]}/hook")
        end(client)
        with hooks.deliver():
            until(lambda: failed(client))
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert "TLS failed: " in failed(client)[0]["reason"]
    assert len(heard) == 3
    for said in heard:
        assert said[:1] == b"\x16"  # the beginning of a handshake
        assert b"POST" not in said
