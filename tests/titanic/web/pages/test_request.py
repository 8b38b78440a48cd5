"""The page of a request, and what can be done there."""

from __future__ import annotations

import html
import json
import re
import threading
from typing import Any, cast

import httpx
import msgspec
import pytest
from markupsafe import escape
from support.lived import PICTURE, Lived
from support.pages import Page, page_of
from support.serving import QUICK
from support.waiting import until

from broker import Worker
from titanic import Client, Server, UnknownRequest, current
from titanic.client.flows import step_key
from titanic.protocol.documents import RequestInfo
from titanic.schedules.scheduler import pause_schedule
from titanic.web.pages import requests
from titanic.web.pages.requests import MAX_DEPTH, MAX_FRAMES, dump, preview, preview_body, timeline

UNKNOWN = "01a1fdd40f82747ea223cfe554e7afbc"


def page(http: httpx.Client, uuid: str, status: int = 200) -> Page:
    answer = http.get(f"/requests/{uuid}")
    assert answer.status_code == status
    return Page(answer.text)


def test_a_waiting_request(http: httpx.Client, client: Client) -> None:
    uuid = client.submit(
        "mail", b'{"to": "a@b.example"}', key="order-7", priority=9, limit=90, ttl=3600, max_attempts=3
    )
    found = page(http, uuid)
    assert found.headings[:5] == ["mail", "Body", "Timeline", "Details", "Commands"]
    facts = {"Source": "127.0.0.1", "Key": "order-7", "Priority": "9"}
    facts |= {"Attempt time limit": "90 s", "Attempts": "0 of 3"}
    assert found.figures.items() >= facts.items()
    assert "No worker of mail has registered since the server started" in found.text
    assert "start one: titanic work mail -- COMMAND" in found.text
    assert "Waiting for a worker" in found.text
    assert "Expires unless started" in found.text
    assert '"to": "a@b.example"' in found.text
    assert f"titanic show {uuid} --endpoint tcp://127.0.0.1:" in found.text
    assert f"/v1/requests/{uuid}" in found.text
    assert "Retry" not in found.text


def test_what_a_request_was_submitted_with(http: httpx.Client, client: Client) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    spans: dict[str, Any] = {"limit": 9, "retry_first": 2, "retry_most": 30, "keep": 60, "keep_failed": 90}
    uuid = client.submit("mail", b"", trace=trace, tracestate="a=1", on_limit="leave", keep_body=50, **spans)
    facts = {"Trace": trace, "Tracestate": "a=1", "After the time limit": "continues", "Priority": "4 default"}
    facts |= {"Attempt time limit": "9 s", "First retry delay": "2 s", "Longest retry delay": "30 s"}
    facts |= {"Reply is kept for": "60 s", "Kept after a failure for": "90 s", "Body is kept for": "50 s"}
    assert page(http, uuid).figures.items() >= facts.items()


def test_uuids_with_dashes_and_capitals(http: httpx.Client, client: Client) -> None:
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


def test_a_done_request(http: httpx.Client, lived: Lived) -> None:
    found = page(http, lived.done(b"text", PICTURE, bytes(range(200))))
    text = http.get(f"/requests/{lived.done(PICTURE)}").text
    assert 'src="data:image/png;base64,iVBORw0K' in text
    assert "Frame 1 text" in found.headings
    assert "000010 10 11 12" in found.text
    assert "Download reply" in found.links


def test_a_failed_request(http: httpx.Client, lived: Lived) -> None:
    said = b'titanic:error={"type":"shop.OutOfStock","args":["a.png", 3]}'
    found = page(http, lived.failed("OutOfStock: a.png", said, b"Traceback (most recent call last):\n  File x"))
    assert "OutOfStock: a.png" in found.text
    assert 'shop.OutOfStock("a.png", 3)' in found.text
    assert "Traceback (most recent call last): File x" in found.text
    assert "Failed permanently" in found.text


def test_invalid_exception_detail_is_shown_as_it_is(http: httpx.Client, lived: Lived) -> None:
    for said in ("{}", "[", '{"type": 1, "args": 5}', '{"args": []}', "[" * 5000):
        assert "titanic:error=" in page(http, lived.failed("no", b"titanic:error=" + said.encode())).text


@pytest.mark.settings(retry_first=3600.0, retry_most=3600.0)
def test_a_request_between_two_attempts(http: httpx.Client, lived: Lived, client: Client) -> None:
    uuid = lived.until(client.submit("echo", b"fail", b"not yet"), "delayed")
    found = page(http, uuid)
    assert "Next attempt (2)" in found.text
    assert "Last attempt's error" in found.headings


def test_a_delayed_request_starts_now(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("mail", b"", delay=3600)
    form = page(http, uuid).form(f"/actions/requests/{uuid}/start")
    assert http.post(f"/actions/requests/{uuid}/start", data=form).status_code == 303
    assert client.show(uuid)["state"] == "waiting"
    assert "Start now" not in page(http, uuid).text


def test_retrying_an_expired_request(http: httpx.Client, lived: Lived, client: Client) -> None:
    uuid = lived.expired()
    form = page(http, uuid).form(f"/actions/requests/{uuid}/retry")
    answer = http.post(f"/actions/requests/{uuid}/retry", data=form, follow_redirects=True)
    assert "Queued again" in answer.text
    answer = http.post(f"/actions/requests/{client.submit('mail', b'')}/retry", data=form, follow_redirects=True)
    assert "it has not failed or expired" in answer.text


def test_an_expired_request_is_retried_with_the_body_of_a_form(
    http: httpx.Client, lived: Lived, client: Client
) -> None:
    uuid = lived.expired()
    form = Page(http.get(f"/requests/{uuid}/again").text).form(f"/actions/requests/{uuid}/again")
    http.post(f"/actions/requests/{uuid}/retry", data=form | {"body": "in\r\ntime"})
    assert client.look(uuid).body == [b"in\ntime"]
    found = page(http, uuid)
    assert "Body replaced" in found.text
    assert "Old body late" in found.text
    waiting = Page(http.get(f"/requests/{uuid}/again").text)
    assert "Retry with this body" not in waiting.text


def test_a_retry_of_poison_says_that_it_may_kill_workers(http: httpx.Client, lived: Lived, client: Client) -> None:
    uuid = lived.failed("poison: 3 workers died")
    found, action = page(http, uuid), f"/actions/requests/{uuid}/retry"
    assert action not in [attributes.get("action") for attributes, _ in found.forms]
    assert "retry it; it may kill its workers again" in found.text
    asked = page_of(http, found.links["Retry…"])
    assert "Each attempt may kill another worker" in asked.text
    assert "Each attempt may kill another worker" in page_of(http, found.links["Run again…"]).text
    assert client.show(uuid)["state"] == "failed"
    answer = http.post(action, data=asked.form(action), follow_redirects=True)
    assert "Queued again" in answer.text
    assert "kill" not in page(http, lived.failed("no way")).text


def test_closing_asks_for_confirmation(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("mail", b"")
    asked = Page(http.get(f"/requests/{uuid}/close").text)
    assert "It will never be executed" in asked.text
    assert client.show(uuid)["state"] == "waiting"
    answer = http.post(f"/actions/requests/{uuid}/close", data=asked.form(f"/actions/requests/{uuid}/close"))
    assert answer.status_code == 303
    gone = http.get(answer.headers["location"])
    assert gone.status_code == 410
    assert "Request deleted" in Page(gone.text).headings
    with pytest.raises(UnknownRequest):
        client.show(uuid)


def test_arguments_of_a_task_are_shown_first_or_raw(http: httpx.Client, client: Client) -> None:
    body = b'{"args":[1.10,{"a":[]}],"kwargs":{"width":320}}'
    uuid = client.submit("resize", body)
    found = page(http, uuid)
    assert found.headings[1] == "Arguments"
    assert {name: found.figures[name] for name in ("1", "2", "width")} == {
        "1": "1.10",
        "2": '{ "a": [] }',
        "width": "320",
    }
    raw = Page(http.get(found.links["Raw"]).text)
    assert raw.headings[1] == "Body"
    assert body.decode() in raw.text
    packed = page(http, client.submit("resize", msgspec.msgpack.encode({"args": [b"\0"], "kwargs": {"to": "ü"}})))
    assert (packed.figures["1"], packed.figures["to"]) == ('"AA=="', '"ü"')
    assert "None." in page(http, client.submit("resize", b'{"args": [], "kwargs": {}}')).text
    for other in (b'{"args": 1, "kwargs": {}}', b'{"args": [], "kwargs": {}, "more": 1}', b"\x81\xa1", b"[" * 5000):
        assert page(http, client.submit("resize", other)).headings[1] == "Body"


@pytest.mark.parametrize("text", ['{"to": "a@b.example"}\n\t', "\nfirst", ""])
def test_a_request_is_run_again_with_its_body(http: httpx.Client, client: Client, text: str) -> None:
    uuid = client.submit(
        "mail", text.encode(), key="order 7", priority=7, limit=5, delay=3600, unique="7", unique_for=60
    )
    asked = http.get(f"/requests/{uuid}/again").text
    form = Page(asked).form(f"/actions/requests/{uuid}/again")
    assert f">\n{escape(text)}</textarea>" in asked, "browsers drop the first line feed"
    sent = {**form, "body": text.replace("\n", "\r\n")}
    answer = http.post(f"/actions/requests/{uuid}/again", data=sent)
    assert answer.status_code == 303
    found = client.look(answer.headers["location"].rpartition("/")[2])
    assert found.body == [text.encode()]
    assert (found.info["uuid"] != uuid, found.info["state"]) == (True, "waiting")
    assert (found.info["priority"], found.info["options"]) == (7, {"limit": 5.0})
    answer = http.post(f"/actions/requests/{uuid}/again", data={**form, "body": "other\r\n"})
    assert client.look(answer.headers["location"].rpartition("/")[2]).body == [b"other\n"]
    assert client.look(uuid).body == [text.encode()]


def test_bodies_that_a_form_would_change_are_sent_as_they_are(http: httpx.Client, client: Client) -> None:
    for body in ([b"a\r\nb"], [b"\xff\0"], [b"a", b"b"], [b"x" * 70_000]):
        uuid = client.submit("mail", *body)
        asked = http.get(f"/requests/{uuid}/again").text
        assert "textarea" not in asked
        form = Page(asked).form(f"/actions/requests/{uuid}/again") | {"body": "not this"}
        answer = http.post(f"/actions/requests/{uuid}/again", data=form)
        assert client.look(answer.headers["location"].rpartition("/")[2], None).body == body


def test_requests_that_cannot_be_run_again(http: httpx.Client, client: Client) -> None:
    large = client.submit("mail", bytes(2 << 20))
    answer = http.get(f"/requests/{large}/again")
    assert (answer.status_code, "its body is 2.0 MiB" in answer.text) == (413, True)
    pause_schedule(client, "nightly")
    (pause,) = client.list(service="cron.paused")[0]
    assert "Run again…" not in page(http, pause["uuid"]).links
    assert http.get(f"/requests/{pause['uuid']}/again").status_code == 400
    assert http.get(f"/requests/{UNKNOWN}/again").status_code == 404


def test_unknown_requests(http: httpx.Client) -> None:
    found = page(http, UNKNOWN, 410)
    assert "It was closed, deleted after its retention time, or never accepted" in found.text
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


def test_a_search_finds_services_errors_and_keys(
    http: httpx.Client, client: Client, lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "SUGGESTED", 1)
    failed = lived.failed("OutOfStock: 3 left")
    keyed = client.submit("stock.count", b"x", key="of stock 7")
    answer = http.get("/find", params={"q": "STOCK"})
    found = Page(answer.text)
    assert answer.status_code == 200
    assert found.links["stock.count"] == "/services/stock.count"
    assert [row[0] for row in found.rows] == [keyed, failed]
    assert found.form("/find") == {"q": "STOCK"}


def test_content_is_escaped(http: httpx.Client, lived: Lived, client: Client) -> None:
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


def test_progress_of_a_running_request(http: httpx.Client, server: Server, client: Client) -> None:
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


def test_the_steps_of_a_workflow(http: httpx.Client, client: Client) -> None:
    flow = client.submit("shop.flow", b"")
    assert "No steps submitted yet" in page(http, flow).text
    inner = client.submit("inner.flow", b"", key=step_key(flow, "0.0"))
    leaf = client.submit("resize", b"", key=step_key(inner, "0.0"))
    found = page(http, flow)
    assert found.links["inner.flow"] == f"/requests/{inner}"
    assert found.links["resize"] == f"/requests/{leaf}"
    assert "0.0 resize waiting" in found.text
    assert "Each number is CHAIN.STAGE, counted from 0" in found.text
    client.retry(leaf)
    with Worker("resize", lambda frames: frames, client.endpoint, config=QUICK):
        client.wait(leaf, 60)
    assert re.search(r"0\.0 resize done (< )?[\d.]+ m?s", page(http, flow).text)


def test_a_large_body_is_cut(http: httpx.Client, client: Client) -> None:
    found = page(http, client.submit("mail", b"\xff" * 300_000, b"more"))
    assert "Only the first 64.0 KiB are shown" in found.text
    assert "1 more frame not shown" in found.text


# -- timeline -----------------------------------------------------------------------------------------------------

FRESH: dict[str, Any] = {
    "service": "mail",
    "state": "waiting",
    "submitted_at": 1_000_000,
    "not_before": 0,
    "expires_at": 0,
    "attempts": 0,
    "dispatched_at": 0,
    "due": 0,
    "finished_at": 0,
}


def entries(**more: Any) -> list[tuple[str, str, int]]:
    return [(one.stage, one.what, one.at) for one in timeline(cast("RequestInfo", FRESH | more))]


def test_the_timeline_of_a_waiting_request() -> None:
    assert entries(expires_at=9) == [
        ("done", "Submitted", 1_000_000),
        ("now", "Waiting for a worker", 0),
        ("ahead", "Expires unless started", 9),
    ]


def test_the_timeline_of_a_delayed_request() -> None:
    assert entries(state="delayed", not_before=2_000_000, due=2_000_000)[1:] == [("now", "Delayed until", 2_000_000)]


def test_the_timeline_of_a_retried_request() -> None:
    assert entries(state="delayed", attempts=3, dispatched_at=5, due=8)[1:] == [
        ("unknown", "2 earlier attempts failed", 0),
        ("done", "Attempt 3 dispatched", 5),
        ("done", "Attempt 3 failed", 0),
        ("now", "Next attempt (4)", 8),
    ]


def test_the_timeline_of_a_running_request() -> None:
    assert entries(state="running")[1:] == [("now", "Running", 0)]
    row = FRESH | {"state": "running", "running_since": 2_000_000, "worker": "bee:17"}
    now = timeline(cast("RequestInfo", row))[-1]
    assert (now.what, now.at, now.more) == ("Running since", 2_000_000, "on bee:17")


def test_the_timeline_of_a_flow() -> None:
    """Its worker polls its steps, again and again."""
    flow = {"service": "shop.flow", "deliveries": 15, "due": 8}
    assert entries(**flow, state="delayed")[1:] == [
        ("done", "Polled its steps 15 times", 0),
        ("now", "Next poll of its steps", 8),
    ]
    row = FRESH | flow | {"state": "done", "attempts": 1, "dispatched_at": 9_000_000, "finished_at": 9_500_000}
    found = timeline(cast("RequestInfo", row | {"deliveries": 0}))
    assert [(one.what, one.more) for one in found[1:]] == [("Last poll of its steps", ""), ("Done", "after 8.5 s")]
    assert entries(deliveries=2)[1] == ("done", "Dispatched without a result 2 times", 0)


def test_the_timeline_of_a_done_request() -> None:
    row = FRESH | {"state": "done", "attempts": 1, "dispatched_at": 1_500_000, "finished_at": 3_500_000}
    found = timeline(cast("RequestInfo", row))
    assert [(one.what, one.more) for one in found] == [
        ("Submitted", ""),
        ("Dispatched", "after 500 ms"),
        ("Done", "ran for 2 s"),
    ]


def test_the_timeline_of_an_expired_request() -> None:
    found = entries(state="expired", finished_at=7_000_000, expires_at=7_000_000)
    assert found[1:] == [("done", "Expired", 7_000_000)]


# -- previews -----------------------------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def test_frames_are_shown_by_kind() -> None:
    assert preview(b"") == ("empty", "", 0, False)
    assert preview(b'{"a": [1]}') == ("json", '{\n  "a": [\n    1\n  ]\n}', 10, False)
    assert preview("grüße\r\nund\t".encode()) == ("text", "grüße\nund\t", 13, False)
    assert preview(b"17").kind == "text"
    assert preview(b"{not json").kind == "text"
    assert preview(PNG).text.startswith("data:image/png;base64,iVBOR")
    assert [preview(begin + bytes(9)).kind for begin in (b"GIF89a", b"\xff\xd8\xff", b"RIFF1234WEBP")] == ["image"] * 3
    assert preview(bytes(range(256))).kind == "hex"
    assert preview(b"\0\1\2\3").kind == "hex"
    assert preview(b'{"a":1}', raw=True) == ("text", '{"a":1}', 7, False)
    assert preview(PNG, raw=True).kind == "hex"


def test_json_is_indented_with_its_values_as_written() -> None:
    text = '{"a": 1.10, "a": 1e400, "b": [ ], "c": {"d": [-0, "\\u00e4 \\" [,"], "e": {}}}'
    assert preview(text.encode()).text == (
        '{\n  "a": 1.10,\n  "a": 1e400,\n  "b": [],\n  "c": {\n    "d": [\n      -0,\n      "\\u00e4 \\" [,"\n'
        '    ],\n    "e": {}\n  }\n}'
    )
    assert preview(b"[" + b"9" * 5000 + b"]").kind == "json"


def test_formats_that_may_contain_scripts_are_shown_as_text() -> None:
    for frame in (b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>", b"<html>", b"%PDF-1.7"):
        assert preview(frame).kind == "text"


def test_control_characters_are_escaped() -> None:
    assert preview(b"red \x1b[31m" + b"x" * 60).text.startswith("red \\x1b[31m")
    assert "\u202e" not in preview(json.dumps({"name": "\u202egpj.exe"}).encode()).text


def test_a_cut_frame_keeps_its_kind() -> None:
    assert preview("grü".encode()[:-1], cut=True) == ("text", "gr", 3, True)
    assert preview(b'{"a": 1}', cut=True).kind == "text"
    assert preview(PNG, cut=True).kind == "hex"


def test_deeply_nested_json_is_shown_as_text() -> None:
    for deep in (MAX_DEPTH + 1, 5000):
        assert preview(b"[" * deep + b"]" * deep).kind == "text"
    assert preview(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH).kind == "json"


def test_frames_over_the_limit_are_counted() -> None:
    found = preview_body([b"x"] * 30, 1000, 1000)
    assert (len(found.frames), found.more, found.size) == (MAX_FRAMES, 980, 1000)
    whole, half = preview_body([b"abc", b"de"], 2, 10).frames
    assert (whole.cut, half.cut) == (False, True)


def test_a_hex_dump() -> None:
    assert dump(b"0123456789abcdef\xff\n") == (
        "000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef\n"
        "000010  ff 0a                                            .."
    )
