"""What a hook may be, and whom it may speak to."""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import socket
from dataclasses import replace
from typing import Any

import pytest
from support.each import each

from titanic.errors import InvalidRequest
from titanic.web.hooks.delivery import HookUnreachable, may_reach, resolve
from titanic.web.hooks.registry import Hook, check_hook, id_of, new_secret, read_hook

HOOK = Hook(id_of("mail", "https://a.example/x"), "mail", "https://a.example/x", ("done",), "s" * 16, "u")


def test_a_hook_is_read_as_it_was_kept() -> None:
    assert read_hook(HOOK.frames(), "u") == HOOK
    for frames in ([], [b"{}"], [b"{}", b""], [b"[]", b"x" * 16], [b"\xff", b""], [HOOK.frames()[0], b"short"]):
        assert read_hook(frames, "u") is None


def test_the_signature_of_standard_webhooks() -> None:
    """The example of its specification."""
    hook, body = replace(HOOK, secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), b'{"test": 2432232314}'
    assert hook.standard("msg_p5jXN8AQM9LWM0D4loKWxJek", body, 1614265330) == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    check_hook(replace(HOOK, secret=new_secret()))
    for secret in ("s" * 16, "whsec_s" * 3):
        signed = base64.b64encode(hmac.digest(secret.encode(), b"id.1.x", "sha256")).decode()
        assert replace(HOOK, secret=secret).standard("id", b"x", 1)["webhook-signature"] == f"v1,{signed}"


def test_a_secret_is_not_told() -> None:
    assert HOOK.secret not in repr(HOOK) + str(HOOK.public())
    with pytest.raises(InvalidRequest) as told:
        check_hook(replace(HOOK, secret="short and secret"))
    assert "short and secret" not in str(told.value)


@each(
    "wrong",
    [
        {"url": url}
        for url in (
            "",
            "ftp://a.example/",
            "file:///etc/passwd",
            "https://",
            "https:///x",
            "https://user:word@a.example/",
            "https://user@a.example/",
            "https://a.example/#x",
            "https://a.example/ x",
            "https://a.example/\r\nX: y",
            "https://ä.example/",
            "https://a.example:0/",
            "https://a.example:99999/",
            "https://a.example:x/",
            "https://[::1]/",
            "https://a.example/\n",
            "https://a..example/",
            "https://a.example\\@b.example/",
            "https://a.example/" + "x" * 2000,
        )
    ]
    + [{"service": "web.hook"}, {"service": "titanic.list"}, {"service": ""}, {"states": ()}, {"states": ("gone",)}]
    + [{"states": ("done", "done")}, {"secret": "x" * 15}, {"secret": "x" * 257}, {"secret": "ä" * 20}, {"id": "x"}],
)
def test_what_is_no_hook_is_refused(wrong: dict[str, Any]) -> None:
    check_hook(HOOK)
    with pytest.raises(InvalidRequest):
        check_hook(replace(HOOK, **wrong))


REFUSED = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.9.9.9",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.192",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::8.8.8.8",
    "64:ff9b:1::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@each("address", REFUSED)
def test_inner_addresses_are_refused(address: str) -> None:
    assert not may_reach(ipaddress.ip_address(address), ())


@each("address", ["8.8.8.8", "93.184.215.14", "2606:4700::1111", "2a00:1450:4001::1"])
def test_those_of_the_internet_are_not(address: str) -> None:
    assert may_reach(ipaddress.ip_address(address), ())


def test_the_operator_may_allow_a_network() -> None:
    allowed = (ipaddress.ip_network("10.0.0.0/8"),)
    assert may_reach(ipaddress.ip_address("10.1.2.3"), allowed)
    assert not may_reach(ipaddress.ip_address("192.168.1.1"), allowed)
    assert not may_reach(ipaddress.ip_address("::ffff:10.1.2.3"), allowed)


def test_of_a_name_only_good_addresses_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"mixed": ["10.0.0.1", "8.8.8.8"], "inner": ["10.0.0.1", "::1"]}

    def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        if host not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert asyncio.run(resolve("mixed", 80, ())) == [ipaddress.ip_address("8.8.8.8")]
    with pytest.raises(HookUnreachable, match="inner is not a public address") as told:
        asyncio.run(resolve("inner", 80, ()))
    assert "10.0.0.1" not in str(told.value)
    with pytest.raises(HookUnreachable, match="nowhere has no address"):
        asyncio.run(resolve("nowhere", 80, ()))


@each("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", "0"])
def test_other_ways_to_write_an_inner_address_do_not_help(host: str) -> None:
    with pytest.raises(HookUnreachable):
        asyncio.run(resolve(host, 80, ()))
