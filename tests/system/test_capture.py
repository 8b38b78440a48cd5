"""What somebody learns who reads all that goes over the wire."""

from __future__ import annotations

from pathlib import Path

from support.relay import relay
from support.secured import curve_of, new_pair
from support.serving import QUICK, serving
from zmq.utils import z85

from broker import Worker, load_secret, new_keys
from titanic import Client

SERVICE, NAME, KEY = "confidential", "mallory", "my-own-key"
BODY, REPLY, CALL = b"the-body-of-a-request", b"ITS-REPLY", b"a-plain-request"

ACCESS = """
[users.{name}]
keys = ["{key}"]
submit = ["{service}"]
work = ["{service}"]
call = ["{service}"]
read = "own"
close = true
metrics = true

[endpoints."{local}"]
user = "{name}"
"""


def life(client: Client, key: str) -> str:
    """All that somebody does with a request; its UUID."""
    uuid = client.submit(SERVICE, BODY, key=key)
    assert client.wait(uuid, timeout=30) == client.reply(uuid) == [REPLY]
    assert client.show(uuid)["owner"] == NAME
    assert client.find([key])[0] == {key: uuid}
    assert client.call(SERVICE, CALL) == [REPLY]
    assert b"titanic.submit" in client.call("mmi.services", b"")[0]
    assert client.stats()["store"]
    client.close(uuid)
    return uuid


def test_nothing_can_be_read_of_what_is_encrypted_and_everything_of_what_is_not(tmp_path: Path) -> None:
    user, local, access = new_pair(), f"ipc://{tmp_path}/local", tmp_path / "access.toml"
    _, key = new_keys(tmp_path, "server")
    server = load_secret(key)
    access.write_text(ACCESS.format(name=NAME, key=user.public.decode(), service=SERVICE, local=local))
    keys = [*(half for pair in (user, server) for half in (pair.public, pair.secret))]
    secret = [KEY.encode(), BODY, REPLY, CALL, SERVICE.encode(), NAME.encode(), b"titanic.", b"MDP"]
    with serving(tmp_path, bind=("tcp://127.0.0.1:*", local), access=access, key=key) as titanic:
        for endpoint, curve in (
            (titanic.endpoints[0], curve_of(user, server.public)),
            (titanic.endpoints[1], None),
        ):
            with (
                relay(endpoint, tapped=True) as line,
                Worker(SERVICE, lambda frames: REPLY, line.endpoint, config=QUICK, key=curve),
                Client(line.endpoint, timeout=30, key=curve) as client,
            ):
                uuid = life(client, f"{KEY} {endpoint}")
            heard = b"\n".join(line.heard)
            never = [bytes.fromhex(uuid), *keys, *(z85.decode(one) for one in keys)]
            assert not [one for one in never if one in heard]
            seen = [one for one in (*secret, uuid.encode()) if one in heard]
            assert seen == ([] if curve else [*secret, uuid.encode()])
            assert len(heard) > 3000
