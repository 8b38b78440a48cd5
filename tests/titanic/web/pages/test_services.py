"""The services, and one of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from support.pages import Page, page_of
from support.raw_mdp import raw_worker
from support.serving import QUICK
from support.waiting import until
from support.web_hooks import LOOPBACK
from support.web_secured import secured

from broker import Worker
from titanic import Client, Server
from titanic.schedules.scheduler import pause_schedule
from titanic.services.named_services import NamedServices
from titanic.settings import ServiceLimits
from titanic.web.pages import services
from titanic.web.stats import StatsSample


def test_an_empty_list_says_what_to_do(http: httpx.Client) -> None:
    page = page_of(http, "/services")
    assert "No services yet" in page.text
    assert "titanic work SERVICE -- COMMAND" in page.text
    assert "No matching services" not in page.text


def test_an_older_server_has_fewer_figures() -> None:
    row = {"waiting": 3, "workers": 1, "done": 2, "failed": 0}
    found = services.service_of(StatsSample(0.0, {"by_service": {"a": row}}, {"a": 1}, 0.0), "a")
    assert (found.waiting, found.done, found.workers, found.paused, found.limits) == (3, 2, 1, False, {})


def test_sorting_filters_and_pages(
    http: httpx.Client, client: Client, echo: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, name in enumerate(("mail.a", "mail.b", "resize", "Mail.c"), 1):
        client.submit_batch(name, [b"x"] * n)
    monkeypatch.setattr(services, "PAGE", 2)

    def names(path: str) -> list[str]:
        return [row[0] for row in page_of(http, path).rows]

    first = page_of(http, "/services?sort=-waiting")
    assert [row[:2] for row in first.rows] == [["Mail.c", "4"], ["resize", "3"]]
    assert "1 to 2 of 5 services" in first.text
    assert names(first.links["Next page"]) == ["mail.b", "mail.a"]
    assert names("/services?sort=-waiting&page=3") == ["echo"]
    assert names(first.links["Waiting"]) == ["echo", "mail.a"]
    assert names("/services?q=MAIL") == ["Mail.c", "mail.a"]
    assert names("/services?only=lonely&sort=-name") == ["resize", "mail.b"]
    assert "Show all 5 services" in page_of(http, "/services?q=nothing").text
    for wrong in ("sort=size", "page=0", "page=x"):
        assert http.get(f"/services?{wrong}").status_code == 400


@pytest.mark.web(hooks=True)
def test_services_that_only_record_a_state_are_not_listed(http: httpx.Client, client: Client) -> None:
    """They pause a schedule and keep a webhook, and no worker serves them."""
    client.submit("mail", b"")
    pause_schedule(client, "nightly")
    assert http.put("/v1/hooks", json={"service": "mail", "url": "https://a.example/x"}).status_code == 201
    listed = ["mail", "web.delivery", "web.ended"]
    until(lambda: [row[0] for row in page_of(http, "/services").rows] == listed)
    assert "cron.paused" not in http.get("/").text
    assert "web.hook" not in http.get("/requests").text.partition("<tbody>")[0]
    assert page_of(http, "/services/cron.paused").figures["Delayed"] == "1"


def test_of_many_services_the_largest_are_listed_and_each_has_its_page(
    http: httpx.Client, server: Server, client: Client
) -> None:
    server._context.named = NamedServices(most=3)
    for name in ("a", "b", "c", "d", "e"):
        client.submit_batch(name, [b"x"] * (2 if name in "cde" else 1))
    until(lambda: "And 2 more services with 2 waiting requests" in page_of(http, "/services").text)
    assert [row[0] for row in page_of(http, "/services").rows] == ["c", "d", "e"]
    filtered = page_of(http, "/services?q=a")
    assert "No matching services among those listed" in filtered.text
    assert "And 2 more services with 2 waiting requests" in filtered.text
    assert page_of(http, filtered.links["a"]).figures["Waiting"].startswith("1 oldest")
    assert "All services (2 more)" in page_of(http, "/").text
    listed = http.get("/v1/services").json()
    assert [row["name"] for row in listed["services"]] == ["c", "d", "e"]
    assert listed["other"] == {"services": 2, "waiting": 2, "delayed": 0}


def test_a_service_that_has_more_than_its_limit_says_why(http: httpx.Client, server: Server, client: Client) -> None:
    client.submit_batch("mail", [b"x"] * 2)
    with raw_worker(server.endpoints[0], b"mail") as one, raw_worker(server.endpoints[0], b"mail") as other:
        one.take(), other.take()
        until(lambda: page_of(http, "/services/mail").figures["Running"] == "2")
        server.reload(replace(server.config, limits={b"mail": ServiceLimits(running=1)}))
        text = "2 over the limit: they began before it was lowered"
        until(lambda: page_of(http, "/services/mail").figures["Running"] == text)
    ahead = services.ServiceRow("mail", running=8, workers=4)
    assert ahead.excess == "sent to workers; some wait for a free slot"
    assert not replace(ahead, running=4).excess
    assert not replace(ahead, workers=None).excess


@pytest.mark.parametrize("name", ["mail", "a/b c", "..", "<i>&?#%", "größe"])
def test_each_service_has_a_page(http: httpx.Client, client: Client, name: str) -> None:
    client.submit(name, b"")
    url = page_of(http, "/services").links[name]
    page = page_of(http, url)
    assert page.headings[0] == name
    assert page.figures["Waiting"].startswith("1 oldest: ")
    assert "1 request waiting, no workers" in page.text
    assert f"No worker of {name} has registered since the server started" in page.text


def test_latency_and_failures(http: httpx.Client, client: Client, echo: Worker) -> None:
    client.wait(client.submit("echo", b"x"), 30)
    page = page_of(http, "/services/echo")
    assert [row[0] for row in page.rows] == ["Wait", "Run"]
    assert "No attempt has ended" not in page.text
    assert "No failures." in page.text
    assert page.figures["Workers"] == "2"
    assert page.links["Failed per second"] == "/requests?service=echo&state=failed"


@pytest.mark.settings(max_attempts=1)
def test_recent_failures(http: httpx.Client, client: Client, echo: Worker) -> None:
    uuid = client.submit("echo", b"fail")
    with pytest.raises(Exception, match="as you wish"):
        client.wait(uuid, 30)
    page = page_of(http, "/services/echo")
    assert page.rows[-1][:2] == [uuid, "as you wish"]
    assert [row[0] for row in page.rows[:-1]] == ["Wait", "Run"]


def test_an_unknown_service(http: httpx.Client) -> None:
    page = page_of(http, "/services/unknown")
    assert page.figures["Waiting"] == "0"
    assert "No limits." in page.text
    assert "Latency" not in page.headings  # nothing to measure; the charts say so
    assert http.get("/services/").status_code == 404


def test_a_link_cannot_forge_a_message(http: httpx.Client, client: Client) -> None:
    client.submit("mail", b"x")
    http.post("/actions/services", data=page_of(http, "/services/mail").form("/actions/services"))
    (name,) = http.cookies
    for path in ("/services/mail?told=pause", "/schedules?told=paused&name=Call+555+now"):
        http.cookies.set(name, "Q2FsbCA1NTUgbm93." + "0" * 64)
        text = page_of(http, path).text
        assert "Paused. Its" not in text
        assert "Call" not in text


@pytest.mark.settings(limits={b"mail": ServiceLimits(waiting=1000, rate=2.5)})
def test_pause_and_resume(http: httpx.Client, client: Client) -> None:
    client.submit("mail", b"x")
    page = page_of(http, "/services/mail")
    assert page.figures["Maximum waiting"] == "1,000 requests"
    assert page.figures["Maximum rate"] == "2.5 per second"
    answer = http.post("/actions/services", data=page.form("/actions/services"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/services/mail")
    assert client.stats()["settings"]["mail"]["paused"]
    page = page_of(http, answer.headers["location"])
    message = "Paused. Its requests wait until it is resumed"
    assert message in page.text
    assert "Service mail is paused (" in page.text
    assert message not in page_of(http, "/services/mail").text, "it is shown once"
    assert [row[0] for row in page_of(http, "/services?only=paused").rows] == ["mail paused Resume"]
    assert "Paused with requests waiting: mail (1 waiting)" in page_of(http, "/").text
    assert page.form("/actions/services")["do"] == "resume"
    form = page_of(http, "/").form("/actions/services")
    assert form["do"] == "resume", "one click from the overview"
    http.post("/actions/services", data=form)
    assert page_of(http, "/services?only=paused").rows == []
    assert http.post("/actions/services", data=form | {"do": "stop"}).status_code == 400
    assert http.post("/actions/services", data=form | {"csrf": ""}).status_code == 403


# -- which service gets a request when one of another ends ---------------------------------------------------------

ON_END_FORM = "/actions/services/ends"


def on_end(client: Client) -> str | None:
    settings = client.stats().get("settings", {})
    return settings["mail"]["on_end"] if "mail" in settings else None


def test_on_end_is_set_and_reset(http: httpx.Client, client: Client) -> None:
    client.submit("mail", b"x")
    page = page_of(http, "/services/mail")
    form = page.form(ON_END_FORM)
    assert (form["service"], form["on_end"]) == ("mail", "")
    answer = http.post(ON_END_FORM, data=form | {"on_end": " audit "})
    assert (answer.status_code, answer.headers["location"]) == (303, "/services/mail")
    assert on_end(client) == "audit"
    page = page_of(http, answer.headers["location"])
    assert "Saved. It applies to requests that end from now on." in page.text
    assert page.figures["Notifies"] == "audit"
    assert page.form(ON_END_FORM)["on_end"] == "audit"
    assert http.post(ON_END_FORM, data=form | {"on_end": ""}).status_code == 303
    assert on_end(client) is None


def test_invalid_on_end_is_rejected(http: httpx.Client, client: Client) -> None:
    form = page_of(http, "/services/mail").form(ON_END_FORM)
    for wrong in ({"on_end": "mail"}, {"on_end": "titanic.submit"}, {"on_end": "x" * 256}, {"service": ""}):
        assert http.post(ON_END_FORM, data=form | wrong).status_code == 400, wrong
    assert http.post(ON_END_FORM, data={"csrf": form["csrf"], "service": "mail"}).status_code == 400
    assert http.post(ON_END_FORM, data=form | {"on_end": "audit", "csrf": ""}).status_code == 403
    assert on_end(client) is None


def test_a_service_that_gets_ends_of_others_has_none_of_its_own(http: httpx.Client, client: Client) -> None:
    for name in ("mail", "shop", "sms"):
        client.set_service(name, on_end="audit" if name == "mail" else "mail")
    page = page_of(http, "/services/mail")
    assert "this service receives the notifications of shop and 1 other service" in page.text
    assert "receives the notifications" not in page_of(http, "/services/shop").text


@pytest.mark.web(hooks=True, hooks_allow=LOOPBACK)
def test_on_end_of_a_service_with_web_hooks(http: httpx.Client, client: Client) -> None:
    assert http.put("/v1/hooks", json={"service": "mail", "url": "http://127.0.0.1:1/secret"}).status_code == 201
    page = page_of(http, "/services/mail")
    assert re.fullmatch(r"127\.0\.0\.1:1 \S+", page.rows[-1][0])  # hooks of one host can be told apart
    assert page.rows[-1][1:] == ["done, failed, expired", "0", "–"]
    assert page_of(http, "/hooks").rows == [["mail", *page.rows[-1]]]
    assert "/hooks" in page.links.values()
    uuid = client.submit("mail", b"x", ttl=0.001)
    until(lambda: page_of(http, "/services/mail").rows[-1][2] == "1")
    delivery, state, *error = page_of(http, "/services/mail").rows[-1][3].split(" ", 2)
    assert (client.look(delivery).info["service"], uuid.encode() in client.look(delivery).body[0]) == (
        "web.delivery",
        True,
    )
    assert (state, "127.0.0.1:1: " in error[0]) == ("delayed", True)
    assert page_of(http, "/hooks").rows[0][3] == "1"
    client.set_service("mail", on_end="other")
    assert "No events for the webhooks of mail" in page_of(http, "/hooks").text
    client.set_service("mail", on_end="web.ended")
    assert "Webhooks receive its notifications" in page.text
    assert page.form(ON_END_FORM)["on_end"] == "web.ended"
    assert "secret" not in page.text


# -- workers -------------------------------------------------------------------------------------------------------


def test_workers_and_what_they_have(http: httpx.Client, server: Server, client: Client) -> None:
    assert "No workers." in page_of(http, "/workers").text
    with raw_worker(server.endpoints[0], b"<i>a</i>") as worker:
        uuid = client.submit("<i>a</i>", b"secret")
        worker.take()
        page = page_of(http, "/workers")
        until(lambda: uuid in page_of(http, "/workers").links)
        page = page_of(http, "/workers")
    assert "1 worker process." in page.text
    assert "To drain a worker, stop its unit, or send SIGTERM to its process" in page.text
    first, last = page.rows
    assert first[:4] == ["unnamed", "<i>a</i>", "1", "1"]
    assert last[:3] == [uuid, "<i>a</i>", "unnamed"]
    assert page.links[uuid] == f"/requests/{uuid}"
    assert "secret" not in page.text


def test_the_version_that_a_worker_says(http: httpx.Client, server: Server) -> None:
    with (
        raw_worker(server.endpoints[0], b"mail"),
        Worker("pay", list, server.endpoints[0], config=replace(QUICK, deploy="<i>v2</i>")),
    ):
        until(lambda: len(page_of(http, "/workers").rows) == 2)
        rows = sorted(page_of(http, "/workers").rows)
    assert {(row[1], row[2]) for row in rows} == {("–", "mail"), ("<i>v2</i>", "pay")}


def test_workers_without_the_permission(tmp_path: Path) -> None:
    with secured(tmp_path / "scene") as scene:
        alice = {"key": str(scene.keys / "alice.key_secret"), "server_key": str(scene.server_key)}
        with Worker("mail", lambda frames: frames, scene.server.endpoints[0], config=QUICK, **alice):
            until(lambda: "mail" in Page(scene.browser("alice").get("/workers").text).text)
            page = Page(scene.browser("alice").get("/workers").text)
            assert "Only the number of workers is shown." in page.text
            assert "metrics = true" in page.text
            assert page.rows == [["mail", "1"]]
            assert "No workers." in Page(scene.browser("bob").get("/workers").text).text
            assert Page(scene.browser("chief").get("/workers").text).rows[0][1:4] == ["alice", "mail", "1"]


# -- limits --------------------------------------------------------------------------------------------------------

LIMITS_FORM = "/actions/services/limits"


@pytest.mark.settings(limits={b"mail": ServiceLimits(waiting=1000, rate=2.5)})
def test_limits_are_set_and_reset(http: httpx.Client, client: Client) -> None:
    client.submit("mail", b"x")
    form = page_of(http, "/services/mail").form(LIMITS_FORM)
    assert {name: form[name] for name in ("running", "rate", "waiting", "bytes")} == dict.fromkeys(
        ("running", "rate", "waiting", "bytes"), ""
    )
    answer = http.post(LIMITS_FORM, data=form | {"running": " 4 ", "rate": "1/m", "bytes": "1MiB"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/services/mail")
    assert client.stats(services=True)["by_service"]["mail"]["limits"] == {
        "waiting": 1000,
        "bytes": 1 << 20,
        "running": 4,
        "rate": 1 / 60,
    }
    page = page_of(http, "/services/mail")
    assert "Saved. The limits apply at once" in page.text
    assert page.figures["Maximum waiting"] == "1,000 requests"
    assert page.figures["Maximum running"].startswith("4 requests (set ")
    assert page.figures["Maximum running"].endswith(" ago; configured: no limit)")
    assert page.figures["Maximum rate"].endswith("configured: 2.5/s)")
    form = page.form(LIMITS_FORM)
    assert (form["running"], form["rate"], form["waiting"], form["bytes"]) == ("4", "1/m", "", "1MiB")
    assert http.post(LIMITS_FORM, data=form | {"running": "", "rate": "", "bytes": ""}).status_code == 303
    assert "limits_set" not in client.stats(services=True)["by_service"]["mail"]


def test_invalid_limits_are_rejected(http: httpx.Client, client: Client) -> None:
    client.submit("mail", b"x")
    form = page_of(http, "/services/mail").form(LIMITS_FORM)
    for wrong in ({"running": "0"}, {"rate": "10"}, {"bytes": "-1"}, {"service": ""}, {"service": "titanic.list"}):
        assert http.post(LIMITS_FORM, data=form | wrong).status_code == 400, wrong
    assert http.post(LIMITS_FORM, data={"csrf": form["csrf"], "service": "mail"}).status_code == 400
    assert http.post(LIMITS_FORM, data=form | {"running": "4", "csrf": ""}).status_code == 403
    assert client.stats(services=True)["by_service"]["mail"]["limits"]["running"] is None


def test_who_set_a_limit_is_on_the_page_of_an_admin_and_not_in_samples_for_all(tmp_path: Path) -> None:
    with secured(tmp_path / "scene") as scene:
        chief = scene.program("chief")
        answer = chief.put("/v1/services/mail/limits", json={"running": 4})
        assert answer.json()["limits_set"]["by"] == "chief"
        (row,) = chief.get("/v1/services").json()["services"]
        assert (row["limits_set"]["running"], row["limits_set"]["by"]) == (4, "")
        assert "set by chief, " in scene.browser("chief").get("/services/mail").text
        assert scene.program("alice").put("/v1/services/mail/limits", json={"running": 5}).status_code == 403
