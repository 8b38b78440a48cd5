"""One request over HTTP: submitted, looked at, its reply, closed, tried again."""

from __future__ import annotations

import gzip
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from support.cli_titanic import here
from support.pages import Page, every_row
from support.serving import QUICK
from support.waiting import PATIENCE, until

from broker import RemoteError, Worker
from titanic import Client, Server, current
from titanic.protocol.submit_options import AT_ONCE
from titanic.web import request_filter
from titanic.web.api.routes import PATHS
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings

SUBMIT = "/v1/services/echo/requests"


@pytest.fixture
def worker(server: Server) -> Iterator[Worker]:
    """Answers as the body says."""

    def work(frames: list[bytes]) -> list[bytes]:
        if frames[0] == b"fail":
            raise RemoteError(500, "as you wish", [b"titanic:fatal", b"line 1", b"\xff"])
        if frames[0] == b"trace":
            return [current().trace.encode()]
        if frames[0] == b"type":
            return [current().type.encode()]
        if frames[0].startswith(b"many"):
            return frames[0].split(b"|")[1:]
        return frames

    with Worker("echo", work, server.endpoints[0], jobs=2, config=QUICK) as worker:
        yield worker


def test_a_request_is_stored_and_told_where_it_is(http: httpx.Client, client: Client) -> None:
    answer = http.post(SUBMIT, content=b"\x00hello", headers={"Content-Type": "image/png"})
    assert answer.status_code == 202
    uuid = answer.json()["uuid"]
    assert answer.headers["location"] == answer.json()["links"]["self"] == f"/v1/requests/{uuid}"
    told = http.get(answer.headers["location"])
    assert told.status_code == 200
    links = told.json()["links"]
    row = client.show(uuid)
    times = dict.fromkeys(("not_before", "expires_at", "dispatched_at", "due", "finished_at"))
    times["submitted_at"] = told.json()["submitted_at"]
    assert told.json() == {**row, **times, "key": "", "links": links}
    assert datetime.fromisoformat(times["submitted_at"]) == datetime.fromtimestamp(0, UTC) + timedelta(
        microseconds=row["submitted_at"]
    )
    pending = http.get(links["reply"])
    assert (pending.status_code, pending.headers["retry-after"]) == (202, "1")
    assert pending.json()["uuid"] == uuid


def test_why_it_waits(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("none", "a", delay=60)
    assert "why" not in http.get(f"/v1/requests/{uuid}").json()
    told = http.get(f"/v1/requests/{uuid}?why=true").json()
    assert told["why"]["kind"] == "delayed"
    assert told["why"]["until"] == told["due"]
    assert http.get(f"/v1/requests/{uuid}?why=1").status_code == 400


def test_its_body_can_be_had_again(http: httpx.Client, client: Client) -> None:
    body = bytes(range(256)) * 8192
    uuid = http.post(SUBMIT, content=body, headers={"Content-Type": "image/png"}).json()["uuid"]
    answer = http.get(f"/v1/requests/{uuid}/body")
    assert answer.content == body
    assert answer.headers["content-type"] == "image/png"
    text = client.submit("echo", b'{"price": 1.10}')
    assert http.get(f"/v1/requests/{text}/body").headers["content-type"] == "application/json"
    parts = http.get(f"/v1/requests/{client.submit('echo', b'one', b'two')}/body")
    assert parts.headers["content-type"].startswith("multipart/mixed")
    unsafe = http.post(SUBMIT, content=b"<script>", headers={"Content-Type": "text/html"}).json()["uuid"]
    assert http.get(f"/v1/requests/{unsafe}/body").headers["content-disposition"] == "attachment"
    client.close(uuid)
    assert http.get(f"/v1/requests/{uuid}/body").status_code == 410


def test_an_encoded_body_is_refused(http: httpx.Client, client: Client) -> None:
    for path in (SUBMIT, f"{SUBMIT}:batch"):
        answer = http.post(path, content=gzip.compress(b"[1]"), headers={"Content-Encoding": "gzip"})
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    assert http.post(SUBMIT, content=b"x", headers={"Content-Encoding": "identity"}).status_code == 202
    assert len(client.list()[0]) == 1


@pytest.mark.settings(capacity=16 << 20)
def test_problems_have_a_type(http: httpx.Client, client: Client) -> None:
    key = {"Idempotency-Key": "one"}
    uuid = http.post(SUBMIT, content=b"x", headers=key).json()["uuid"]
    for answer, kind in {
        http.get("/v1/requests?limit=x"): "bad-request",
        http.get("/v1/nothing"): "not-found",
        http.get(f"/v1/requests/{'0' * 32}"): "unknown-request",
        http.post(SUBMIT, content=b"y", headers=key): "key-reused",
        http.post(f"/v1/requests/{uuid}:retry"): "conflict",
        http.post(SUBMIT, content=bytes(16 << 20)): "store-full",
    }.items():
        assert answer.json()["type"] == f"urn:titanic:problem:{kind}", answer.text


def test_options_are_headers(http: httpx.Client, client: Client) -> None:
    headers = {
        "Titanic-TTL": "3600",
        "Titanic-Delay": "1800.5",
        "Titanic-Priority": "7",
        "Titanic-Max-Attempts": "3",
        "Titanic-Limit": "1.5e1",
        "Titanic-Keep": "never",
        "Titanic-Keep-Failed": "60",
        "Titanic-Keep-Body": "never",
        "Titanic-Retry-First": "2",
        "Titanic-Retry-Most": "20",
        "Titanic-On-Failed": "mail.failed",
        "Titanic-On-Limit": "leave",
        "Titanic-Key-For": "3600",
        "Idempotency-Key": "order 17",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "congo=t61,rojo=00f0",
    }
    uuid = http.post(SUBMIT, content=b"x", headers=headers).json()["uuid"]
    told = client.show(uuid)
    assert (told["priority"], told["max_attempts"], told["options"]["limit"]) == (7, 3, 15.0)
    assert (told["options"]["keep"], told["options"]["keep_failed"]) == (AT_ONCE, 60)
    assert (told["options"]["retry_first"], told["options"]["retry_most"]) == (2, 20)
    assert (told["on_failed"], told["on_limit"], told["keep_body"]) == ("mail.failed", "leave", "never")
    assert told["expires_at"] - told["submitted_at"] == 3600_000_000
    assert told["not_before"] - told["submitted_at"] == 1800_500_000
    assert told["key"] == "order 17"
    assert (told["trace"], told["tracestate"]) == (headers["traceparent"], headers["tracestate"])
    assert http.post(SUBMIT, content=b"x", headers=headers).json()["uuid"] == uuid
    quoted = {**headers, "Idempotency-Key": '"order 17"'}
    assert http.post(SUBMIT, content=b"x", headers=quoted).json()["uuid"] == uuid


def test_a_time_is_a_header(http: httpx.Client, client: Client) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    uuid = http.post(SUBMIT, content=b"x", headers={"Titanic-At": at.isoformat()}).json()["uuid"]
    assert client.show(uuid)["not_before"] == round(at.timestamp() * 1e6)
    gone = http.post(SUBMIT, content=b"x", headers={"Titanic-At": "1970-01-01T00:00:00Z"}).json()["uuid"]
    assert client.show(gone)["not_before"] == 0
    late = http.post(SUBMIT, content=b"x", headers={"Titanic-At": "9999-12-31T23:59:59-01:00"})
    assert (late.status_code, "at most ten years from now" in late.text) == (400, True)
    both = http.post(SUBMIT, content=b"x", headers={"Titanic-At": at.isoformat(), "Titanic-Delay": "1"})
    assert (both.status_code, "cannot be combined" in both.text) == (400, True)


WRONG = [
    ("Titanic-TTL", "0"),
    ("Titanic-TTL", "1e12"),
    ("Titanic-TTL", "10s"),
    ("Titanic-TTL", "nan"),
    ("Titanic-TTL", ""),
    ("Titanic-Delay", "-1"),
    ("Titanic-At", "2030-01-01T00:00:00"),
    ("Titanic-At", "tomorrow"),
    ("Titanic-On-Limit", "kill"),
    ("Titanic-On-Failed", ""),
    ("Titanic-Retry-First", "0"),
    ("Titanic-Key-For", "never"),
    ("Titanic-Priority", "10"),
    ("Titanic-Priority", "1.0"),
    ("Titanic-Max-Attempts", "0"),
    ("Titanic-Max-Attempts", "9" * 5000),
    ("Titanic-Limit", "inf"),
    ("Titanic-Keep", "-1"),
    ("Titanic-Keep", "always"),
    ("Titanic-Keep-Failed", "never"),
    ("Titanic-Keep-Body", "0"),
    ("Titanic-Keep-Body", "always"),
    ("Titanic-Unique", "x" * 256),
    ("Titanic-Unique-Until", "failed"),
    ("Titanic-Unique-For", "0"),
    ("Titanic-Prio", "1"),
    ("Idempotency-Key", ""),
    ("Idempotency-Key", "~x"),
    ("Idempotency-Key", '"x'),
    ("Idempotency-Key", "x" * 241),
]


def test_what_is_wrong_in_a_header_is_told(http: httpx.Client, client: Client) -> None:
    for header, value in WRONG:
        answer = http.post(SUBMIT, content=b"x", headers={header: value})
        assert answer.status_code == 400
        assert header in answer.json()["detail"]
        assert client.stats()["store"]["requests"] == 0


def test_a_unique_request_finds_the_first(http: httpx.Client, client: Client) -> None:
    headers = {"Titanic-Unique": "order 17", "Titanic-Unique-Until": "started", "Titanic-Delay": "100"}
    first, second = (http.post(SUBMIT, content=body, headers=headers) for body in (b"x", b"y"))
    assert (first.status_code, second.status_code) == (202, 202)
    assert second.json() == {**first.json(), "found": True}
    assert second.headers["Location"] == first.headers["Location"]
    keyed = http.post(SUBMIT, content=b"z", headers={**headers, "Idempotency-Key": "k"})
    assert keyed.json()["found"], "the key is that of no request"
    told = client.show(first.json()["uuid"])
    assert (told["unique"], told["unique_until"]) == ("order 17", "started")
    wrong = http.post(SUBMIT, content=b"x", headers={**headers, "Titanic-Unique-For": "5"})
    assert (wrong.status_code, "cannot be combined" in wrong.text) == (400, True)


def test_a_key_stands_for_one_request(http: httpx.Client, client: Client) -> None:
    headers = {"Idempotency-Key": "order 17", "Content-Type": "text/plain"}
    uuid = http.post(SUBMIT, content=b"x", headers=headers).json()["uuid"]
    assert http.post(SUBMIT, content=b"x", headers=headers).json()["uuid"] == uuid
    others = (
        http.post(SUBMIT, content=b"y", headers=headers),
        http.post(SUBMIT, content=b"x", headers={**headers, "Content-Type": "text/html"}),
        http.post("/v1/services/echo2/requests", content=b"x", headers=headers),
    )
    for other in others:
        assert other.status_code == 422
        assert other.json()["uuid"] == uuid
    assert client.stats()["store"]["requests"] == 1
    client.close(uuid)  # nobody knows any more what it was
    assert http.post(SUBMIT, content=b"y", headers=headers).json()["uuid"] == uuid


def test_a_key_of_who_does_not_speak_http_tells_no_body(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("echo", b"x", key="mine")
    assert http.post(SUBMIT, content=b"y", headers={"Idempotency-Key": "mine"}).json()["uuid"] == uuid


def test_a_key_that_a_client_has_made_up_is_not_told(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("echo", b"x")
    assert client.show(uuid)["key"].startswith("~")
    (row,) = http.get("/v1/requests").json()["requests"]
    assert (row["key"], http.get(f"/v1/requests/{uuid}").json()["key"]) == ("", "")


def test_the_content_type_goes_to_the_worker(http: httpx.Client, worker: Worker) -> None:
    headers = {"Prefer": "wait=30", "Content-Type": "text/x-odd; charset=utf-8"}
    assert http.post(SUBMIT, content=b"type", headers=headers).text == headers["Content-Type"]
    for type in ("x" * 128, "ä/b".encode()):
        assert http.post(SUBMIT, content=b"type", headers={"Content-Type": type}).status_code == 400


def test_headers_and_parameters_are_there_once(http: httpx.Client) -> None:
    assert http.post(SUBMIT, headers=[("Titanic-TTL", "1"), ("titanic-ttl", "1")]).status_code == 400
    assert http.post(SUBMIT, headers=[("Idempotency-Key", "1"), ("idempotency-key", "1")]).status_code == 400
    assert http.post(f"{SUBMIT}?ttl=1").status_code == 400
    assert http.get("/v1/requests?limit=1&limit=2").status_code == 400


NAMES = ["a/b", "../..", "?x=1#y", "größe 😀", "a:b%2F", ".", "x" * 255, "requests:batch"]


def test_services_have_any_printable_name(http: httpx.Client, client: Client) -> None:
    for service in NAMES:
        path = "".join(f"%{byte:02X}" for byte in service.encode())
        answer = http.post(f"/v1/services/{path}/requests", content=b"x")
        assert answer.status_code == 202, answer.text
        assert client.show(answer.json()["uuid"])["service"] == service
        (row,) = http.get("/v1/requests", params={"service": service}).json()["requests"]
        assert row["uuid"] == answer.json()["uuid"]
    told = http.get("/v1/services").json()["services"]
    assert [one["name"] for one in told] == sorted(NAMES)
    for one in told:
        assert http.post(one["links"]["submit"], content=b"x").status_code == 202
        assert len(http.get(one["links"]["requests"]).json()["requests"]) == 2


NO_NAMES = ["%FF", "%00", "a%0Ab", "mmi.service", "titanic.submit", "x" * 256]


def test_what_cannot_be_a_service_is_refused(http: httpx.Client) -> None:
    for path in NO_NAMES:
        assert http.post(f"/v1/services/{path}/requests", content=b"x").status_code == 400


def test_the_reply_comes_at_once_when_it_is_preferred(http: httpx.Client, worker: Worker) -> None:
    answer = http.post(SUBMIT, content=b"hello", headers={"Prefer": 'respond-async;x=y, Wait="30"'})
    assert (answer.status_code, answer.content) == (200, b"hello")
    assert answer.headers["preference-applied"] == "wait=30"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert http.get(f"{answer.headers['location']}/reply").content == b"hello"


def test_a_body_that_is_not_kept_is_gone(http: httpx.Client, worker: Worker, server: Server) -> None:
    answer = http.post(SUBMIT, content=b"x", headers={"Titanic-Keep-Body": "never", "Prefer": "wait=60"})
    uuid = answer.headers["location"].rpartition("/")[2]
    body = http.get(f"/v1/requests/{uuid}/body")
    fault = "its body was deleted because of keep_body"
    assert (answer.status_code, body.status_code, body.json()["detail"]) == (200, 410, fault)
    shown = here("show", uuid, "--body", "--endpoint", server.endpoints[0])
    assert (shown.code, shown.err) == (1, f"titanic: request {uuid} has no body; {fault}\n")


def test_a_request_without_its_body_is_not_retried(
    http: httpx.Client, worker: Worker, client: Client, server: Server
) -> None:
    """After the time in `keep_body`; with another body it is."""
    headers = {"Titanic-Keep-Body": "0.001", "Titanic-Max-Attempts": "1"}
    uuid = http.post(SUBMIT, content=b"fail", headers=headers).json()["uuid"]
    until(lambda: client.show(uuid)["body_frames"] == 0)
    shown = http.get(f"/v1/requests/{uuid}").json()
    assert (shown["state"], shown["options"], "keep_body" in shown) == ("failed", {"keep_body": 0.001}, False)
    fault = "its body was deleted because of keep_body"
    answer = http.post(f"/v1/requests/{uuid}:retry")
    detail = f"the request cannot be retried without a new body: {fault}"
    assert (answer.status_code, answer.json()["detail"]) == (410, detail)
    assert http.get(f"/v1/requests/{uuid}/body").status_code == 410
    said = here("retry", uuid, "--endpoint", server.endpoints[0])
    assert (said.code, said.err) == (1, f"titanic: {uuid} cannot be requeued without a new body (--body): {fault}\n")
    assert client.retry_all() == 0
    assert http.put(f"/v1/requests/{uuid}/body?retry=true", content=b"y").status_code == 204
    assert client.wait(uuid, timeout=60) == [b"y"]


def test_a_reply_that_does_not_come_in_time_is_fetched_later(
    http: httpx.Client, server: Server, client: Client
) -> None:
    answer = http.post(SUBMIT, content=b"hello", headers={"Prefer": "wait=0"})
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "wait=0")
    found: list[httpx.Response] = []

    def fetch() -> None:
        found.append(http.get(f"{answer.headers['location']}/reply?wait=30"))

    fetching = threading.Thread(target=fetch)
    fetching.start()
    until(lambda: client.stats()["waiting_clients"] == 1)
    with Worker("echo", list, server.endpoints[0], config=QUICK):
        fetching.join()
    assert (found[0].status_code, found[0].content) == (200, b"hello")


def test_a_failure_is_told_with_what_its_worker_said(http: httpx.Client, worker: Worker) -> None:
    answer = http.post(SUBMIT, content=b"fail", headers={"Prefer": "wait=30"})
    assert answer.status_code == 424
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["state"] == "failed"
    assert "as you wish" in problem["detail"]
    assert problem["worker"] == ["line 1", "�"]
    uuid = problem["uuid"]
    again = http.get(f"/v1/requests/{uuid}/reply?wait=1")
    assert (again.status_code, again.json()) == (424, problem)
    assert http.post(f"/v1/requests/{uuid}:retry").status_code == 202
    until(lambda: http.get(f"/v1/requests/{uuid}").json()["state"] == "failed")


def test_only_what_has_ended_badly_is_tried_again(http: httpx.Client) -> None:
    uuid = http.post(SUBMIT, content=b"x").json()["uuid"]
    answer = http.post(f"/v1/requests/{uuid}:retry")
    assert answer.status_code == 409
    assert "waiting" in answer.json()["detail"]


def test_one_that_another_with_its_unique_key_has_followed_is_in_conflict(http: httpx.Client, worker: Worker) -> None:
    headers = {"Prefer": "wait=30", "Titanic-Unique": "order 7", "Titanic-Unique-For": "1000"}
    first, _ = (http.post(SUBMIT, content=b"fail", headers=headers).json()["uuid"] for _ in range(2))
    for answer in (
        http.post(f"/v1/requests/{first}:retry"),
        http.put(f"/v1/requests/{first}/body?retry=true", content=b"y"),
    ):
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:titanic:problem:conflict")
        assert "unique_for" in answer.json()["detail"]


def test_what_waits_is_changed(http: httpx.Client, client: Client) -> None:
    uuid = http.post(SUBMIT, content=b"x", headers={"Titanic-Delay": "3600"}).json()["uuid"]
    path = f"/v1/requests/{uuid}"
    assert http.patch(path, json={"priority": 9, "at": "2026-12-01T08:00:00+01:00"}).status_code == 204
    assert client.show(uuid)["priority"] == 9
    assert http.patch(path, json={"delay": 7200}).status_code == 204
    assert http.get(path).json()["state"] == "delayed"
    assert http.patch(path, json={"delay": 0}).status_code == 204
    assert http.get(path).json()["state"] == "waiting"
    assert http.put(f"{path}/body", content=b"y" * 100_000).status_code == 204
    assert http.get(f"{path}/body").content == b"y" * 100_000


def test_an_expired_request_is_retried_with_another_body(http: httpx.Client, client: Client) -> None:
    path = f"/v1/requests/{client.submit('nobody', b'late', ttl=0.001)}"
    until(lambda: http.get(path).json()["state"] == "expired")
    assert http.put(f"{path}/body", content=b"y").status_code == 409
    assert http.put(f"{path}/body?retry=true", content=b"in time").status_code == 204
    assert http.get(f"{path}/body").content == b"in time"
    row = http.get(path).json()
    (old,) = row["history"]["replaced"]
    assert (row["state"], old["frames"], row["history"]["attempts"]) == ("waiting", ["late"], [])
    assert old["replaced_at"].endswith("Z")
    answer = http.put(f"{path}/body?retry=true", content=b"y")
    assert (answer.status_code, answer.json()["detail"].partition(";")[0]) == (409, "the request is waiting")
    assert http.put(f"/v1/requests/{'0' * 32}/body?retry=true", content=b"y").status_code == 404


def test_what_cannot_be_changed(http: httpx.Client, worker: Worker) -> None:
    uuid = http.post(SUBMIT, content=b"x").json()["uuid"]
    path = f"/v1/requests/{uuid}"
    until(lambda: http.get(path).json()["state"] == "done")
    answer = http.patch(path, json={"priority": 9})
    assert answer.status_code == 409
    assert answer.json()["detail"] == "the request is done; only waiting and delayed ones can be changed"
    assert http.put(f"{path}/body", content=b"y").status_code == 409
    assert http.patch(f"/v1/requests/{'0' * 32}", json={"priority": 9}).status_code == 404
    for document in (
        b"",
        b"[]",
        b"{}",
        b'{"priority": 10}',
        b'{"delay": -1}',
        b'{"delay": 1, "at": "2026-12-01T08:00:00Z"}',
    ):
        assert http.patch(path, content=document).status_code == 400, document
    waiting = http.post("/v1/services/absent/requests", content=b"x").json()["uuid"]
    for at in ("tomorrow", "2026-12-01T08:00:00", "9999-01-01T00:00:00Z"):
        answer = http.patch(f"/v1/requests/{waiting}", json={"at": at})
        assert (answer.status_code, "at" in answer.json()["detail"]) == (400, True), at
    assert http.patch(path, content=b'{"priority":' + b" " * 2000 + b"1}").status_code == 413


def test_closed_is_gone_and_never_made_is_not_found(http: httpx.Client) -> None:
    uuid = http.post(SUBMIT, content=b"x").json()["uuid"]
    for _ in range(2):
        assert http.delete(f"/v1/requests/{uuid}").status_code == 204
    dashed = f"{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}"
    for one in (uuid, uuid.upper(), dashed):
        assert http.get(f"/v1/requests/{one}").status_code == 410
        assert http.get(f"/v1/requests/{one}/reply").status_code == 410
        assert http.get(f"/v1/requests/{one}/reply?wait=5").status_code == 410
        assert http.post(f"/v1/requests/{one}:retry").status_code == 410
    future = f"{0xFFFFFFFFFFFF:012x}{uuid[12:]}"
    for one in (future, "0" * 32, "x", "123", "%00", "..", "a%2Fb"):
        assert http.get(f"/v1/requests/{one}").status_code == 404
        assert http.get(f"/v1/requests/{one}/reply").status_code == 404
        assert http.post(f"/v1/requests/{one}:retry").status_code == 404


def test_a_running_request_is_deleted_with_its_process_if_that_can_be(http: httpx.Client, server: Server) -> None:
    """Threads cannot be killed, which the answer and the page say; of a pool's process tests/titanic/pool."""
    started, ends = threading.Event(), threading.Event()

    def handle(frames: list[bytes]) -> None:
        started.set()
        ends.wait(60)

    with Worker("held", handle, server.endpoints[0], jobs=2, config=QUICK):
        for way in ("API", "page"):
            uuid = http.post("/v1/services/held/requests", content=b"x").json()["uuid"]
            assert started.wait(60)
            until(lambda uuid=uuid: http.get(f"/v1/requests/{uuid}").json()["state"] == "running")
            if way == "API":
                assert http.delete(f"/v1/requests/{uuid}?kill=true").status_code == 202
            else:
                forms = [values for _, values in Page(http.get(f"/requests/{uuid}/close").text).forms]
                (form,) = (values for values in forms if "kill" in values)
                done = http.post(f"/actions/requests/{uuid}/close", data=form, follow_redirects=True)
                assert "were deleted. Its worker was notified, but cannot be killed." in done.text
            assert http.get(f"/v1/requests/{uuid}").status_code == 410
        ends.set()


TYPES = [
    (b'{"a": 1}', "application/json", b'{"a": 1}'),
    (b"[1", "text/plain; charset=utf-8", b"[1"),
    (b"[" * 100_000, "text/plain; charset=utf-8", b"[" * 100_000),
    (b"\xff", "application/octet-stream", b"\xff"),
    (b"", "text/plain; charset=utf-8", b""),
    (b"many|Content-Type: image/png|\x00", "image/png", b"\x00"),
    (b"many|Content-Type: text/csv; charset=latin-1|\xff", "text/csv; charset=latin-1", b"\xff"),
]


def test_replies_have_their_type(http: httpx.Client, worker: Worker) -> None:
    for body, type, content in TYPES:
        answer = http.post(SUBMIT, content=body, headers={"Prefer": "wait=30"})
        assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, type, content)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "sandbox"
        assert "content-disposition" not in answer.headers
        head = http.head(f"{answer.headers['location']}/reply")
        assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(content)), b"")


EXECUTED = ["text/html", "image/svg+xml", "application/xhtml+xml", "text/javascript", "x/y"]


def test_what_a_browser_would_execute_is_to_be_saved(http: httpx.Client, worker: Worker) -> None:
    for type in EXECUTED:
        body = f"many|Content-Type: {type}|<script>alert(1)</script>"
        answer = http.post(SUBMIT, content=body, headers={"Prefer": "wait=30"})
        assert answer.headers["content-type"] == type
        assert answer.headers["content-disposition"] == "attachment"
        assert answer.headers["content-security-policy"] == "sandbox"


def test_several_frames_are_parts(http: httpx.Client, worker: Worker) -> None:
    """What is no type, or would add a header, is a frame like others."""
    for first in (b"a", b"Content-Type: text/plain\r\nX-Evil: 1", b"Content-Type: "):
        answer = http.post(SUBMIT, content=b"many|" + first + b"|{}", headers={"Prefer": "wait=30"})
        assert answer.headers["content-type"].startswith("multipart/mixed; boundary=")
        assert "x-evil" not in answer.headers
        boundary = answer.headers["content-type"].partition("=")[2].encode()
        parts = answer.content.split(b"--" + boundary)
        assert parts[1] == b"\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n" + first + b"\r\n"
        assert parts[2] == b"\r\nContent-Type: application/json\r\n\r\n{}\r\n"
        assert parts[3] == b"--\r\n"


def test_the_trace_goes_to_the_worker(http: httpx.Client, worker: Worker) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"Prefer": "wait=30", "traceparent": trace}
    assert http.post(SUBMIT, content=b"trace", headers=headers).text == trace
    headers["traceparent"] = "nonsense"  # W3C: as if it were not there
    assert http.post(SUBMIT, content=b"trace", headers=headers).text == ""


@pytest.mark.parametrize(("states", "kept"), [(["a=1", "b=2"], "a=1,b=2"), (["a=1", "nonsense"], ""), (["a"], "")])
def test_a_tracestate_goes_with_its_trace(http: httpx.Client, client: Client, states: list[str], kept: str) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for parent, expected in ((trace, kept), ("nonsense", "")):
        headers = [("traceparent", parent), *(("tracestate", state) for state in states)]
        answer = http.post(SUBMIT, content=b"x", headers=headers)
        assert client.show(answer.json()["uuid"]).get("tracestate", "") == expected


def test_methods(http: httpx.Client) -> None:
    for template, item in PATHS.items():
        path = re.sub(r"\{\w+\}", "0" * 32, template)
        methods = {method.upper() for method in item if method != "parameters"}
        allow = methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())
        answer = http.options(path)
        assert (answer.status_code, {*answer.headers["allow"].split(", ")}) == (204, allow)
        answer = http.request("PROPFIND", path)
        assert (answer.status_code, {*answer.headers["allow"].split(", ")}) == (405, allow)
        assert answer.json()["status"] == 405


@pytest.mark.parametrize(("path", "body"), [("", bytes(2 << 20)), ("", [b"x"]), (":batch", b"[1]")])
def test_a_server_that_does_not_say_how_much_it_takes_has_not_answered(path: str, body: Iterable[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = WebSettings((f"tcp://127.0.0.1:{silent.getsockname()[1]}",), bind=("127.0.0.1", 0), timeout=0.1)
        with WebServer(settings) as gateway:
            where, headers = f"{gateway.url}/v1/services/a/requests{path}", {"Content-Type": "application/json"}
            answer = httpx.post(where, content=body, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 504, answer.text


@pytest.mark.web(max_body=1000)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_too_large_is_refused_before_it_is_there(http: httpx.Client, client: Client, chunked: bool) -> None:
    assert http.post(SUBMIT, content=bytes(1000)).status_code == 202
    host, port = http.base_url.host, http.base_url.port
    with socket.create_connection((host, port), timeout=30) as connection:
        length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 1000000000000000000000"[:-3]
        head = b"POST %s HTTP/1.1\r\nHost: %s\r\n%s\r\n\r\n" % (SUBMIT.encode(), host.encode(), length)
        connection.sendall(head + (b"3e9\r\n" + bytes(1001) + b"\r\n" if chunked else b""))
        with connection.makefile("rb") as lines:  # it has never been sent the rest
            assert b" 413 " in lines.readline()
            said = list(iter(lines.readline, b"\r\n"))
            assert b"connection: close\r\n" in [line.lower() for line in said]
    assert client.stats()["store"]["requests"] == 1


def test_who_leaves_while_he_waits_leaves_the_request(http: httpx.Client, server: Server, client: Client) -> None:
    host, port = http.base_url.host, http.base_url.port
    with socket.create_connection((host, port), timeout=30) as connection:
        head = f"POST {SUBMIT} HTTP/1.1\r\nHost: {host}\r\nPrefer: wait=60\r\nContent-Length: 1\r\n\r\nx"
        connection.sendall(head.encode())
        until(lambda: client.stats()["waiting_clients"] == 1)
    ((row,), _) = client.list()
    with Worker("echo", list, server.endpoints[0], config=QUICK):
        assert client.wait(row["uuid"], 30) == [b"x"]


def test_who_leaves_while_he_sends_leaves_nothing(http: httpx.Client, client: Client) -> None:
    host, port = http.base_url.host, http.base_url.port
    with socket.create_connection((host, port), timeout=30) as connection:
        head = f"POST {SUBMIT} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\nhalf"
        connection.sendall(head.encode())
    assert http.get("/v1/stats").status_code == 200
    assert client.stats()["store"]["requests"] == 0


def test_what_is_rare_is_found_in_one_call(
    http: httpx.Client, client: Client, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server looks at so many at a time."""
    monkeypatch.setattr("titanic.store.lmdb.listing.LOOKED_AT", 5)
    monkeypatch.setattr("titanic.services.list_requests.PATIENCE", 0.0)
    monkeypatch.setattr(request_filter, "SEARCH_TIMEOUT", 60.0)
    first = client.submit("rare", b"x", key="Order 7")
    for uuid in client.submit_batch("echo", [b"x"] * 30):
        client.wait(uuid, 30)
    last = client.submit("rare", b"x")
    found = http.get("/v1/requests?service=rare").json()
    assert ([row["uuid"] for row in found["requests"]], found["next"]) == ([first, last], None)
    assert [row["uuid"] for row in http.get("/v1/requests?text=ORDER").json()["requests"]] == [first]
    monkeypatch.setattr(request_filter, "SEARCH_TIMEOUT", 0.0)
    assert http.get("/v1/requests?service=rare").json()["next"]


def test_lists_come_in_pages(http: httpx.Client, client: Client) -> None:
    uuids = client.submit_many("a/b", [b"x"] * 5) + client.submit_many("c", [b"x"] * 2)
    assert [row["uuid"] for row in every_row(http, "/v1/requests?limit=2", "requests")] == uuids
    assert [row["uuid"] for row in every_row(http, "/v1/requests?limit=2&service=a%2Fb", "requests")] == uuids[:5]
    assert every_row(http, "/v1/requests?limit=2&state=failed", "requests") == []
    assert [row["uuid"] for row in every_row(http, "/v1/requests?limit=2&newest=true", "requests")] == uuids[::-1]
    keyed = client.submit("c", b"x", key="ärger & co", delay=60)
    assert [row["uuid"] for row in every_row(http, "/v1/requests?limit=3&text=%C3%A4rger%20%26", "requests")] == [keyed]
    for query in (
        "limit=0",
        "limit=1001",
        "limit=x",
        "state=odd",
        "after=x",
        "newest=1",
        "service=",
        "begin=0",
        "color=red",
    ):
        answer = http.get(f"/v1/requests?{query}")
        assert answer.status_code == 400, query
