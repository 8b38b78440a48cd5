"""`titanic nodes`, `drain` and `status` of servers that share a database."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from support.access_files import AccessFiles
from support.cli_titanic import here, running, serving
from support.pages import Page
from support.postgres import needs_postgres
from support.serving import QUICK, config
from support.waiting import until

from broker import Worker
from titanic import Client, Refused, Server
from titanic.settings import ServiceLimits
from titanic.store import LeaseConfig
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings

pytestmark = needs_postgres


def test_a_node_with_another_lease_is_refused(url: str, tmp_path: Path) -> None:
    with Server(config(tmp_path, store=url, node_name="a")) as a:
        until(a.dispatcher.node.incarnation)
        options = ("--store", url, "--bind", "tcp://127.0.0.1:*", "--node-name", "b", "--lease", "20")
        with running(tmp_path / "log", "serve", *options) as b:
            b.says("the lease differs from that of the other nodes; it is 20 s here and 10 s at a; use the same on all")
            assert b.ends() == 1


def test_a_node_with_another_limit_of_a_service_is_refused(url: str, tmp_path: Path) -> None:
    limits = {b"x": ServiceLimits(running=2, rate=0.5, keep=60), b"z": ServiceLimits(keep_failed=5)}
    common = ("--store", url, "--bind", "tcp://127.0.0.1:*", "--node-name", "b")
    with Server(config(tmp_path, store=url, node_name="a", limits=limits)) as a:
        until(a.dispatcher.node.incarnation)
        with running(tmp_path / "log", "serve", *common, "--service-limit", "x:running=8") as b:
            b.says(
                "the limits of 'x' differ from those of the other nodes; running=8 here, running=2,rate=0.5/s in the"
            )
            assert b.ends() == 1
        same = ("--service-limit", "x:running=2,rate=30/m", "--service-limit", "y:waiting=5")
        with running(tmp_path / "log2", "serve", *common, *same) as b:
            b.says("serving at ")
            until(lambda: a.config.limits == {**limits, b"y": ServiceLimits(waiting=5)})
            b.send(signal.SIGTERM)
            assert b.ends() == 0
    with Server(config(tmp_path, store=url, limits={b"x": ServiceLimits(running=8)})) as alone:
        assert alone.config.limits == {b"x": ServiceLimits(running=8), b"y": ServiceLimits(waiting=5)}


def test_a_reload_at_one_node_changes_the_limits_of_all(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = ServiceLimits(waiting=1), ServiceLimits(waiting=2)
    settings = config(tmp_path, store=url, limits={b"x": before, b"y": before})
    with Server(settings) as a, Server(settings) as b, Client(b.endpoints[0], timeout=30) as client:
        client.submit("x", "1")
        with pytest.raises(Refused, match="service full"):
            client.submit("x", "2")
        a.reload(replace(settings, limits={b"x": after}))
        until(lambda: b.config.limits == a.config.limits == {b"x": after})
        client.submit("x", "2")
        with pytest.raises(Refused, match="its limit is 2"):
            client.submit("x", "3")
        assert "limits of 'x': waiting=2 instead of waiting=1, as set on another node" in caplog.text
        assert "limits of 'y': none instead of waiting=1, as set on another node" in caplog.text
        b.reload(settings)
        assert b.config.limits == {b"x": after}, "its own have not changed"


def test_the_nodes_are_listed_and_one_is_drained(url: str, tmp_path: Path) -> None:
    lease = LeaseConfig(lease=5, renew=0.4, margin=0.5)
    options = ("--store", url, "--bind", "tcp://127.0.0.1:*", "--node-name", "b", "--advertise", "tcp://b.example:1")
    options += ("--lease", "5s")
    with (
        Server(config(tmp_path, store=url, node_name="a", lease=lease)) as a,
        running(tmp_path / "log", "serve", *options) as b,
    ):
        of_a, of_b = ("--endpoint", a.endpoints[0]), ("--endpoint", b.says(r"serving at (\S+);")[1])
        with Worker("echo", lambda frames: frames, of_b[1], config=QUICK):
            until(lambda: "b.example" in here("nodes", *of_a).out.decode())
            until(lambda: here("status", "--json", *of_a).json["workers"].get("echo") == 1)
            found = here("nodes", *of_a)
            assert found.code == 0, found
            title, first, second = found.out.decode().splitlines()
            assert title.startswith("NODE  VERSION  ENDPOINTS")
            assert title.endswith("  UP  LEASE  WORKERS  RUNNING  CLAIMS  SHARD  ACCESS  STATE")
            assert re.split(" {2,}", first)[0::9] == ["a", "open"]
            assert first.split()[-1] == "connected"
            assert second.split()[0] == "b"
            rows = here("nodes", "--json", "--store", url).json
            assert [(row["name"], row["asked"]) for row in rows] == [("a", False), ("b", False)]
            assert all(row["incarnation"] <= 2**53 for row in rows)  # jq would round others, and drain needs it
            status = here("status", *of_a).out.decode()
            assert "\n2 nodes: a (0 running, connected), b (0 running)\nsince start of a: 0 accepted, " in status
            assert here("drain", "c", *of_a).code == 1
            drained = here("drain", "b", "--wait", "30", *of_a)
            assert (drained.code, drained.err) == (0, "titanic: draining b\n")
        b.says("INFO titanic: drained: nothing left to do")
        assert b.ends() == 0
        with Client(a.endpoints[0]) as client:
            assert [row["name"] for row in client.nodes()] == ["a"]
        gone_on = here("drain", "--wait", "0", *of_a)
        assert (gone_on.code, gone_on.err) == (0, "titanic: draining a\n")
        until(lambda: a.drained)


def test_a_node_that_was_killed_stays_in_the_list_until_it_is_back(url: str, tmp_path: Path) -> None:
    lease = LeaseConfig(lease=3, renew=0.4, margin=0.3)
    options = ("--store", url, "--bind", "tcp://127.0.0.1:*", "--node-name", "b", "--lease", "3s")
    with Server(config(tmp_path, store=url, node_name="a", lease=lease)) as a, Client(a.endpoints[0]) as client:
        at, log = ("--endpoint", a.endpoints[0]), tmp_path / "log"

        def problems() -> list[str]:
            checks = here("doctor", "--json", "--timeout", "30", *at).json["checks"]
            return [one["text"] for one in checks if one["check"] == "nodes" and not one["ok"]]

        with running(log, "serve", *options) as b:
            endpoint = b.says(r"serving at (\S+);")[1]
            with Worker("echo", list, endpoint, config=QUICK):
                until(lambda: [row["workers"] for row in client.nodes()] == [0, 1])
                b.kill()
            until(lambda: [row["lease"] is None for row in client.nodes()] == [False, True])
        assert re.search(r"^b .* expired +– +– +0 ", here("nodes", *at).out.decode(), re.M)
        assert problems() == ["stopped without a clean shutdown: b (0 requests claimed)"]
        settings = WebSettings(endpoint=tuple(a.endpoints), bind=("127.0.0.1", 0), timeout=30)
        with WebServer(settings) as web, httpx.Client(base_url=web.url, timeout=30, verify=False) as http:
            (row,) = [row for row in Page(http.get("/store").text).rows if row[0] == "b"]
            assert row[2:] == ["–", "–", "ended"]
            assert "stopped without a clean shutdown: b (0 requests claimed)" in Page(http.get("/").text).text
        with running(log, "serve", *options) as b:
            until(lambda: [row["lease"] is not None for row in client.nodes()] == [True, True])
            assert problems() == []
            b.send(signal.SIGTERM)
            assert b.ends() == 0
        until(lambda: [row["name"] for row in client.nodes()] == ["a"])


def test_access_files_that_differ_are_told(url: str, tmp_path: Path) -> None:
    lease = LeaseConfig(lease=30, renew=0.4, margin=0.5)
    files = AccessFiles(tmp_path / "keys")
    settings = {"store": url, "lease": lease}
    secured = config(tmp_path, node_name="b", access=files.path, key=files.key, **settings)
    with Server(config(tmp_path, node_name="a", **settings)) as a, Server(secured) as b:

        def known() -> list[str]:
            return [row["access"] for row in here("nodes", "--json", "--store", url).json]

        def digest() -> str:
            return sha256(files.path.read_bytes()).hexdigest()[:16]

        until(lambda: known() == ["open", digest()])
        found = here("health", "--endpoint", a.endpoints[0])
        assert found.code == 1
        text = f"warning: nodes have different access files: a has open, b has {digest()[:8]}; use the same on all"
        assert text in found.out.decode()
        assert f"  {digest()[:8]}" in here("nodes", "--store", url).out.decode()
        files.write(files.path.read_text() + "# another one\n")
        b.reload(secured)
        until(lambda: known() == ["open", digest()])
    with Server(config(tmp_path, node_name="a", **settings)) as a, Server(config(tmp_path, node_name="b", **settings)):
        until(lambda: known() == ["open", "open"])
        assert here("health", "--endpoint", a.endpoints[0]).code == 0


def test_a_store_in_a_directory_has_no_nodes(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, endpoint):
        for where in (("--endpoint", endpoint), ("--store", tmp_path / "store")):
            refused = here("nodes", *where)
            assert refused.code == 1
            assert "this store is a directory, which servers cannot share" in refused.err
        assert "it has its store to itself" not in here("status", "--endpoint", endpoint).out.decode()
        refused = here("drain", "--endpoint", endpoint)
        assert refused.code == 1
        assert "this server does not share its store" in refused.err


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--node-name", "a"), "--node-name is for servers that share a store in PostgreSQL"),
        (("--advertise", "tcp://a.example:5555"), "--advertise is for servers that share a store in PostgreSQL"),
        (("--lease", "10"), "--lease is for servers that share a store in PostgreSQL"),
        (("--lease", "2"), "'2' is not a time from 3 s to 3600 s"),
        (("--lease", "2h"), "'2h' is not a time from 3 s to 3600 s"),
        (("--node-name", "7"), "'7' is not a valid name"),
        (("--node-name", "a\nb"), "is not a valid name"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, options: tuple[str, str], fault: str) -> None:
    refused = here("serve", "--store", tmp_path / "s", *options)
    assert refused.code == 2
    assert fault in refused.err
