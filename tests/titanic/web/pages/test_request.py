"""The page of a request, and what can be done there."""

from __future__ import annotations

import html
import json
import threading

import httpx
import pytest
from support.lived import PICTURE, Lived
from support.pages import Page
from support.waiting import until

from broker import Worker
from titanic import Client, Server, UnknownRequest, current
from titanic.protocol.flow_keys import step_key

UNKNOWN = "01a1fdd40f82747ea223cfe554e7afbc"


def page(http: httpx.Client, uuid: str, status: int = 200) -> Page:
    answer = http.get(f"/requests/{uuid}")
    assert answer.status_code == status
    return Page(answer.text)


def test_a_request_that_waits(http: httpx.Client, client: Client) -> None:
    uuid = client.submit(
        "mail", b'{"to": "a@b.example"}', key="order-7", priority=9, limit=90, ttl=3600, max_attempts=3
    )
    found = page(http, uuid)
    assert found.headings[:5] == ["mail", "Life", "Facts", "Body", "As a command"]
    facts = {"Key": "order-7", "Priority": "9", "Limit of an attempt": "90 s", "Attempts": "0 of 3"}
    assert found.figures.items() >= facts.items()
    assert "Waits for a worker" in found.text
    assert "Expires, unless a worker has begun it" in found.text
    assert '"to": "a@b.example"' in found.text
    assert f"titanic show {uuid} --endpoint tcp://127.0.0.1:" in found.text
    assert f"/v1/requests/{uuid}" in found.text
    assert "Retry" not in found.text


def test_uuids_with_dashes_and_capitals_are_understood(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("mail", b"")
    dashed = f"{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}".upper()
    assert page(http, dashed).headings[0] == "mail"


def test_a_generated_key_is_not_shown(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("mail", b"")
    found = page(http, uuid)
    assert "Key" not in found.figures
    assert client.show(uuid)["key"].startswith("~")
    assert '"~' not in found.text
    assert json.dumps(http.get(f"/v1/requests/{uuid}").json(), indent=2) in html.unescape(
        http.get(f"/requests/{uuid}").text
    )


def test_a_request_that_is_done(http: httpx.Client, lived: Lived) -> None:
    found = page(http, lived.done(b"text", PICTURE, bytes(range(200))))
    text = http.get(f"/requests/{lived.done(PICTURE)}").text
    assert 'src="data:image/png;base64,iVBORw0K' in text
    assert "Frame 1 text" in found.headings
    assert "000010 10 11 12" in found.text
    assert "Download the reply" in found.links


def test_a_request_that_failed_for_good(http: httpx.Client, lived: Lived) -> None:
    said = b'titanic:error={"type":"shop.OutOfStock","args":["a.png", 3]}'
    found = page(http, lived.failed("OutOfStock: a.png", said, b"Traceback (most recent call last):\n  File x"))
    assert "OutOfStock: a.png" in found.text
    assert 'shop.OutOfStock("a.png", 3)' in found.text
    assert "Traceback (most recent call last): File x" in found.text
    assert "Failed for good" in found.text


def test_detail_that_only_looks_like_an_exception_is_shown_as_it_is(http: httpx.Client, lived: Lived) -> None:
    for said in ("{}", "[", '{"type": 1, "args": 5}', '{"args": []}', "[" * 5000):
        assert "titanic:error=" in page(http, lived.failed("no", b"titanic:error=" + said.encode())).text


@pytest.mark.settings(retry_first=3600.0, retry_most=3600.0)
def test_what_is_not_known_of_earlier_attempts_is_not_made_up(http: httpx.Client, lived: Lived, client: Client) -> None:
    uuid = lived.until(client.submit("echo", b"fail", b"not yet"), "delayed")
    found = page(http, uuid)
    assert "Tried again, attempt 2" in found.text
    assert "Error of the last attempt" in found.headings


def test_a_request_that_expired_waits_again_when_it_is_retried(
    http: httpx.Client, lived: Lived, client: Client
) -> None:
    uuid = lived.expired()
    form = page(http, uuid).form(f"/actions/requests/{uuid}/retry")
    answer = http.post(f"/actions/requests/{uuid}/retry", data=form, follow_redirects=True)
    assert "It waits again" in answer.text
    answer = http.post(f"/actions/requests/{client.submit('mail', b'')}/retry", data=form, follow_redirects=True)
    assert "it has not failed" in answer.text


def test_a_request_is_closed_after_one_is_asked(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("mail", b"")
    asked = Page(http.get(f"/requests/{uuid}/close").text)
    assert "It will never be executed" in asked.text
    assert client.show(uuid)["state"] == "waiting"
    answer = http.post(f"/actions/requests/{uuid}/close", data=asked.form(f"/actions/requests/{uuid}/close"))
    assert answer.status_code == 303
    gone = http.get(answer.headers["location"])
    assert gone.status_code == 410
    assert "Request closed" in Page(gone.text).headings
    with pytest.raises(UnknownRequest):
        client.show(uuid)


def test_unknown_requests_have_a_page_that_says_what_to_do(http: httpx.Client) -> None:
    found = page(http, UNKNOWN, 410)
    assert "It was closed, deleted after its time, or never accepted" in found.text
    assert found.form("/find") == {"q": ""}
    for wrong in ("x", "0" * 31, "0" * 33, "%00", "%ff", "é" * 32):
        assert "This is not the UUID of a request" in page(http, wrong, 404).text
    token = {"csrf": Page(http.get("/schedules").text).form("/actions/schedules/pause")["csrf"]}
    for path in (f"/actions/requests/{UNKNOWN}/retry", f"/requests/{UNKNOWN}/close"):
        answer = http.post(path, data=token) if "actions" in path else http.get(path)
        assert answer.status_code == 404


def test_a_request_is_found_by_its_uuid_or_its_key(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("mail", b"", key="order 7/ä")
    for words in (uuid, f" {uuid.upper()} ", "order 7/ä"):
        answer = http.get("/find", params={"q": words})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/requests/{uuid}")
    answer = http.get("/find", params={"q": "<b>order 8"})
    assert answer.status_code == 404
    assert "no request has the key <b>order 8" in Page(answer.text).text
    assert http.get("/find").status_code == 200


def test_nothing_of_a_request_becomes_a_part_of_the_page(http: httpx.Client, lived: Lived, client: Client) -> None:
    evil = "<script>alert(1)</script>'\"><img src=x onerror=alert(1)>"
    uuids = [
        lived.failed(evil, evil.encode(), b'titanic:error={"type":"%b","args":[]}' % evil.encode()[:8]),
        client.submit(evil, evil.encode(), key=evil),
        client.submit("mail", b'{"%b": 1}' % evil.encode().replace(b'"', b"'")),
    ]
    for uuid in uuids:
        for path in (f"/requests/{uuid}", f"/requests/{uuid}/close"):
            answer = http.get(path)
            assert answer.status_code == 200
            assert "<script>alert" not in answer.text
            assert "<img src=x" not in answer.text
            Page(answer.text)


def test_progress_is_shown_while_it_runs(http: httpx.Client, server: Server, client: Client) -> None:
    go_on = threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        current().progress(3, of=4, text="halfway <there>")
        go_on.wait(60)
        return []

    with Worker("slow", work, server.endpoints[0]):
        uuid = client.submit("slow", b"")
        try:
            until(lambda: "progress" in client.show(uuid))
            found = page(http, uuid)
        finally:
            go_on.set()
        client.wait(uuid, 30)
    assert "3 of 4 (75 %): halfway <there>" in found.text


def test_a_flow_is_shown_as_a_tree(http: httpx.Client, client: Client) -> None:
    flow = client.submit("shop.flow", b"")
    assert "No step was submitted yet" in page(http, flow).text
    inner = client.submit("inner.flow", b"", key=step_key(flow, "0.0"))
    leaf = client.submit("resize", b"", key=step_key(inner, "0.0"))
    found = page(http, flow)
    assert found.links["inner.flow"] == f"/requests/{inner}"
    assert found.links["resize"] == f"/requests/{leaf}"


def test_a_large_body_is_shown_in_part(http: httpx.Client, client: Client) -> None:
    found = page(http, client.submit("mail", b"\xff" * 300_000, b"more"))
    assert "Only its first 64.0 KiB are shown" in found.text
    assert "1 more frame is not shown" in found.text
