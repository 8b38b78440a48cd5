"""Who may do what, from outside: every action, by every kind of peer, with every kind of key; one table for all.

The peers are MDP 0.1, MDP 0.2, PyPI's majortomo, the dialect of a queue, and somebody who is a user by the endpoint
where he connects (`support.dialects`, `support.access_matrix`). For each of them the table says how it turns out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq
from support.access_matrix import ECHO, KINDS, LINES, NO_WORKER, OTHERS, PARKED, Requests, Scene, Table, matrix
from support.dialects import Spoken

TABLE = """
action           needs        no key  unknown  nothing  without       elsewhere  right     other's  all     admin
---------------  -----------  ------  -------  -------  ------------  ---------  --------  -------  ------  -------
call             call         out     out      403      403           403        answered  –        –       403
READY            work         out     out      refused  refused       refused    taken     –        –       refused
READY titanic.   work         out     out      refused  refused       refused    refused   –        –       refused
work             work         out     out      refused  refused       refused    works     –        –       refused
titanic.request  submit       out     out      400 f    400 f         400 f      200       –        –       200
titanic.submit   submit       out     out      403 f    403 f         403 f      200       –        –       200
titanic.reply    read         out     out      400 f    400 f         –          200       400 u    200     200
titanic.wait     read         out     out      403 f    403 f         –          200       400 u    200     200
titanic.close    close read   out     out      400 f    400 f, 400 f  –          closed    kept     closed  closed
titanic.list     read         out     out      403 f    403 f         –          seen      unseen   seen    seen
list with most   read         out     out      403 f    403 f         –          seen      unseen   seen    seen
titanic.stats    metrics      out     out      403 f    403 f         –          200       –        –       200
titanic.stats    read         out     out      403 f    –             –          403 f     –        200     200
titanic.audit    audit        out     out      403 f    403 f         –          200       –        –       200
retry            submit read  out     out      403 f    left, 403 f   left       done      left     done    done
retry with body  submit read  out     out      403 f    left, 403 f   left       done      left     403 f   done
purge            close read   out     out      403 f    403 f, 403 f  –          done      left     done    done
redrive          close read   out     out      403 f    403 f, 403 f  –          200       –        –       200
archive          archive      out     out      403 f    403 f         –          200       –        –       200
drain            admin        out     out      403 f    403 f         –          400 t     –        –       400 t
set              admin        out     out      403 f    403 f         –          200       –        –       200
sessions         admin        out     out      403 f    403 f         –          200       –        –       200
refused          gateway      out     out      403 f    403 f         –          200       –        –       200
schedules        read         out     out      403 f    403 f         –          200       –        –       200
mmi.service      call         out     out      404      200           404        200       –        –       200
mmi.services     submit       out     out      unseen   seen          unseen     seen      –        –       seen
mmi.workers      work         out     out      unseen   seen          unseen     seen      –        –       seen
mmi.services     metrics      out     out      unseen   –             –          seen      –        –       seen
mmi.stats        metrics      out     out      403      403           –          200       –        –       200
mmi.broker       –            out     out      200      –             –          200       –        –       200
mmi.cancel       call         out     out      404      404           404        200       404      –       404
"""
"""Columns: what the action needs, and who tries it.

no key     where the server wants one
unknown    with a key that no user has; of a local peer: it is another user of the machine who may connect there
nothing    a user who may do nothing
without    users who have every permission but the one that is needed, and not admin; for each that is needed
elsewhere  what is needed, for the services other.* only
right      what is needed and nothing else, with read = "own"; the request is his own
other's    the same, but the request is somebody else's
all        the same with read = "all"
admin      admin = true and nothing else; the request is somebody else's

Outcomes: `out`: the handshake fails, and nothing that was said is heard. `403` alone is an error reply of the broker;
`403 f`, `400 f`: a status of Titanic that says forbidden; `400 u`: one that says that the UUID is unknown; `400 t`: one
that says that this server has no nodes beside it. `kept`, `left`: nobody is told no, and nothing is done. `seen`: the
request is in the list, or a service that is not Titanic's.
"""

KEYLESS = ("no key", "unknown")
MATRIX = Table(TABLE, KEYLESS)


# -- the actions: what is said, and how the outcome is told ------------------------------------------------------------


def status(body: list[bytes]) -> str:
    """A status frame with the first letter of its text, or the status of an error reply of the broker."""
    if body[0] == b"MDPE01":
        return body[1][:3].decode()
    return body[0][:5].decode()


def bodies(requests: Requests) -> dict[str, tuple[bytes, ...]]:
    """The service and the body of each action of a client, for the requests of somebody."""
    done = requests.done[0]
    expired, closed, purged = (some[0] for some in (requests.expired, requests.waiting, requests.waiting[1:]))
    return {
        "call": (ECHO, b"hi"),
        "titanic.request": (b"titanic.request", PARKED, b"x"),
        "titanic.submit": (b"titanic.submit", b"{}", PARKED, b"x"),
        "titanic.reply": (b"titanic.reply", done),
        "titanic.wait": (b"titanic.wait", b"30", done),
        "titanic.close": (b"titanic.close", closed),
        "titanic.list": (b"titanic.list", json.dumps({"uuid": done.decode()}).encode()),
        "list with most": (b"titanic.list", json.dumps({"uuid": done.decode(), "most": 9}).encode()),
        "titanic.stats": (b"titanic.stats", b""),
        "titanic.audit": (b"titanic.audit", b""),
        "retry": (b"titanic.admin", json.dumps({"do": "retry", "uuids": [expired.decode()]}).encode()),
        "retry with body": (
            b"titanic.admin",
            json.dumps({"do": "retry", "uuids": [expired.decode()], "body": 1}).encode(),
            b"body",
        ),
        "purge": (b"titanic.admin", json.dumps({"do": "purge", "uuids": [purged.decode()]}).encode()),
        "redrive": (b"titanic.admin", b'{"do": "redrive", "start": "close", "key": "none"}'),
        "archive": (b"titanic.admin", b'{"do": "archive"}'),
        "drain": (b"titanic.admin", b'{"do": "drain"}'),
        "set": (b"titanic.admin", b'{"do": "set", "service": "parked", "paused": false}'),
        "sessions": (b"titanic.admin", b'{"do": "sessions", "user": "ann"}'),
        "refused": (b"titanic.admin", b'{"do": "refused", "rows": []}'),
        "schedules": (b"titanic.admin", b'{"do": "schedules", "rows": []}'),
        "mmi.service": (b"mmi.service", ECHO),
        "mmi.services": (b"mmi.services", b""),
        "mmi.workers": (b"mmi.workers", b""),
        "mmi.stats": (b"mmi.stats", b""),
        "mmi.broker": (b"mmi.broker", b""),
        "mmi.cancel": (b"mmi.cancel", NO_WORKER, b"mark"),
    }


def is_there(scene: Scene, uuid: bytes) -> bool:
    return bool(scene.listed(uuid=uuid.decode()))


def outcome(scene: Scene, peer: Spoken, action: str, owner: str) -> str:
    """Have a peer try something. `owner`: with whose requests."""
    if action in ("READY", "READY titanic."):
        taken = peer.register(b"titanic.list" if action != "READY" else scene.new_service())
        return "taken" if taken else "refused"
    if action == "work":
        return work(scene, peer)
    if action == "mmi.cancel":
        return cancel(peer, scene.peer("0.2", owner) if owner == "victim" else peer)
    requests = scene.requests[owner]
    service, *body = bodies(requests)[action]
    answer = peer.ask(service, *body)
    if action == "call" and answer == [b"hi"]:
        return "answered"
    if action == "titanic.close":
        kept = is_there(scene, requests.waiting.pop(0))
        assert kept or answer == [b"200"]
        return status(answer) if answer != [b"200"] else "kept" if kept else "closed"
    if action in ("retry", "retry with body"):
        (request,) = scene.listed(uuid=requests.expired.pop(0).decode())
        return done(answer, request["state"] != "expired")
    if action == "purge":
        return done(answer, not is_there(scene, requests.waiting.pop(1)))
    if action in ("titanic.list", "list with most") and answer[0] == b"200":
        assert len(answer) == 2 or (action == "list with most" and answer[3:] == [b"body"])
        return "seen" if json.loads(answer[1])["requests"] else "unseen"
    if action in ("mmi.services", "mmi.workers"):
        names = re.findall(r'"([a-z]+)\.', answer[0].decode())  # Titanic's own services are no secret
        return "seen" if set(names) - {"titanic"} else "unseen"
    if action in ("mmi.stats", "mmi.broker") and len(answer) == 1:
        assert json.loads(answer[0])
        return "200"
    if action in ("titanic.reply", "titanic.wait") and answer[0] == b"200":
        assert answer == [b"200", b"body"]
    return status(answer)


def done(answer: list[bytes], changed: bool) -> str:
    """What titanic.admin says that it has done with one request, if that is so."""
    count = json.loads(answer[1])["done"] if answer[0] == b"200" else 0
    assert changed == bool(count)
    return ("left", "done")[count] if answer[0] == b"200" else status(answer)


def work(scene: Scene, peer: Spoken) -> str:
    """The victim calls a service that has no worker; the peer wants to be it."""
    service, caller = scene.new_service(), scene.peer("0.2", "victim")
    caller.send(service, b"secret", mark=b"secret")
    body = peer.take_one(service, b"done")
    if body is not None:
        assert body == [b"secret"]
        assert caller.receive() == [b"done"]
        return "works"
    caller.send(b"mmi.cancel", service, b"secret", mark=b"cancel")
    answers = [caller.receive(), caller.receive()]
    assert [b"200"] in answers, "nobody else has it"
    return "refused"


def cancel(peer: Spoken, owner: Spoken) -> str:
    """Take back a request, of one's own or of somebody else, which waits if its owner may call."""
    owner.send(NO_WORKER, b"hi", mark=b"mark")
    peer.send(b"mmi.cancel", NO_WORKER, b"mark", mark=b"cancel")
    if peer is owner:
        answers = {status(owner.receive()), status(owner.receive())}
        assert answers in ({"403", "404"}, {"499", "200"}), "it waited, or it was refused"
        return answers.intersection(("404", "200")).pop()
    found = status(peer.receive())
    owner.send(b"mmi.cancel", NO_WORKER, b"mark", mark=b"cancel")
    assert {status(owner.receive()), status(owner.receive())} == {"499", "200"}, (
        "it waited until its owner took it back"
    )
    return found


# -- the table is walked -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["integrated", "apart"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("m")
    with matrix(folder, MATRIX.people(), request.param == "apart", others=3) as one:
        yield one


def test_the_table_has_every_permission() -> None:
    assert {need for _, needs, _ in MATRIX.rows for need in needs} == LINES.keys()


def test_each_user_with_each_kind_of_peer(scene: Scene) -> None:
    wrong = []
    for cell in MATRIX.cells:
        owner = "victim" if cell.column in OTHERS else cell.user
        for kind in KINDS:
            found = outcome(scene, scene.peer(kind, cell.user), cell.action, owner)
            if found != cell.expected:
                wrong.append(f"{cell.action}, {cell.column} ({cell.user}), {kind}: {found}, not {cell.expected}")
    assert not wrong, "\n".join(wrong)


def test_whoever_has_no_key_or_an_unknown_one_is_not_heard(scene: Scene) -> None:
    expected = {(column, outcomes[column]) for _, _, outcomes in MATRIX.rows for column in KEYLESS}
    assert expected == {("no key", "out"), ("unknown", "out")}
    victims = scene.requests["victim"]
    said = list(bodies(Requests(victims.done, victims.expired[-1:], victims.waiting[-2:])).values())
    before = scene.what_is_there()
    for kind in KINDS:
        for with_key in (False, True):
            peer = scene.outsider(kind, with_key)
            peer.connect()
            with suppress(zmq.Again):  # there is nobody to send it to any more
                peer.ready(b"job.taken")
                for service, *body in said:
                    peer.send(service, *body)
            assert peer.shut_out(), (kind, with_key)
            peer.close()
    assert scene.what_is_there() == before
