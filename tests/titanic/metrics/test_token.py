"""Metrics where other machines can read them are for those with a token."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from support.access_files import ALICE, AccessFiles
from support.alone import run_alone

from broker import hash_token
from titanic.metrics.listener import MetricsListener
from titanic.server.server_access import ServerAccess

ROOT = Path(__file__).parents[3]
TOKENS = {name: (f"token-of-{name}", hash_token(f"token-of-{name}")) for name in ("metrics", "admin", "nothing")}
FILE = ALICE + "".join(
    f'[users.{name}]\ntokens = ["{hashed}"]\n' + (f"{name} = true\n" if name != "nothing" else "")
    for name, (_, hashed) in TOKENS.items()
)


@contextmanager
def listening(control: ServerAccess) -> Iterator[int]:
    """Where the metrics are."""
    listener = MetricsListener("127.0.0.1", 0, list, unhealthy=str, unready=str, admits=control.admits)
    yield listener.port
    listener.stop()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    files = AccessFiles(tmp_path_factory.mktemp("token") / "access", FILE)
    with listening(ServerAccess(files.path, files.key)) as port:
        yield port


def ask(port: int, path: str, *headers: str, method: str = "GET") -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest(method, path)
    for header in headers:
        connection.putheader("Authorization", header)
    connection.endheaders()
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


RIGHT = f"Bearer {TOKENS['metrics'][0]}"


@pytest.mark.parametrize("header", [RIGHT, RIGHT.replace("Bearer", "bearer"), f"Bearer {TOKENS['admin'][0]}"])
def test_who_has_the_permission_sees_them(port: int, header: str) -> None:
    assert ask(port, "/metrics", header).status == 200
    assert ask(port, "/metrics", header, method="HEAD").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("",),
        ("Bearer",),
        ("Bearer ",),
        (f"Bearer {TOKENS['nothing'][0]}",),
        (f"Bearer {TOKENS['metrics'][1]}",),  # its hash
        (f"Bearer {TOKENS['metrics'][1].removeprefix('sha256:')}",),
        (f"{RIGHT}x",),
        (RIGHT[:-1],),
        (f"Basic {TOKENS['metrics'][0]}",),
        (TOKENS["metrics"][0],),
        (RIGHT, RIGHT),
        (f"Bearer {'x' * 60_000}",),
        ("Bearer \xff\xfe",),
    ],
)
def test_all_others_are_told_what_it_takes(
    port: int, headers: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    for method in ("GET", "HEAD"):
        answer = ask(port, "/metrics?x=1", *headers, method=method)
        assert (answer.status, answer.getheader("WWW-Authenticate")) == (401, 'Bearer realm="titanic"')
    assert "refused metrics to 127.0.0.1" in caplog.text
    assert not any(header[-20:] in caplog.text for header in headers if len(header) > 20)


def test_health_is_told_to_everybody(port: int) -> None:
    assert [ask(port, page).status for page in ("/healthz", "/readyz", "/else")] == [200, 200, 404]


def test_a_token_that_is_taken_away_is_refused_at_once(tmp_path: Path) -> None:
    files = AccessFiles(tmp_path / "access", FILE)
    control = ServerAccess(files.path, files.key)
    with listening(control) as port:
        assert ask(port, "/metrics", RIGHT).status == 200
        files.write("allow_lockout = true\n" + ALICE)
        control.swap(control.read_again())
        assert ask(port, "/metrics", RIGHT).status == 401


LOOK = """
import sys
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen
from support.waiting import until

def status(asked):
    try:
        return urlopen(asked, timeout=30).status
    except HTTPError as error:
        return error.code
    except URLError:
        return None  # not yet: metrics come behind the endpoints

secured, local, open = "10.0.0.1:9001", "127.0.0.1:9002", "10.0.0.1:9003"
for where in (f"{secured}/metrics", f"{secured}/healthz", secured, f"{local}/metrics", f"{open}/metrics"):
    asked = Request(f"http://{where}")
    if where == secured:
        asked = Request(f"http://{where}/metrics", headers={"Authorization": sys.argv[1]})
    print(until(lambda: status(asked)))
"""


def test_a_server_asks_for_it_where_others_can_connect(tmp_path: Path) -> None:
    """In a network of its own, whose 10.0.0.1 is not the loopback's."""
    files = AccessFiles(tmp_path / "access", FILE)
    (tmp_path / "look.py").write_text(LOOK)
    lines = [
        f"titanic broker {' '.join(files.options)} --bind tcp://127.0.0.1:5001 --metrics 10.0.0.1:9001 &",
        f"titanic broker {' '.join(files.options)} --bind tcp://127.0.0.1:5002 --metrics 127.0.0.1:9002 &",
        "titanic broker --bind tcp://127.0.0.1:5003 --metrics 10.0.0.1:9003 --open &",
        f"{sys.executable} look.py '{RIGHT}'",
        "titanic broker --bind tcp://127.0.0.1:5004 --metrics 10.0.0.1:9004",
    ]
    results = run_alone(lines, tmp_path)
    assert results[3][1].split() == ["401", "200", "200", "200", "200"], results
    assert results[4][0] == 2
    assert "other machines could read them" in results[4][2]
