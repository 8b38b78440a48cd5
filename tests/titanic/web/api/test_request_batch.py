"""Many requests in one call over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.each import each

from titanic import Client
from titanic.settings import ServiceLimits
from titanic.web.api.request_batch import Array, Items, Lines
from titanic.web.problems import HTTPProblem

BATCH = "/v1/services/echo/requests:batch"
JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson; charset=utf-8"}


def cut(items: Items, body: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(body), size):
        yield from items.feed(body[at : at + size])
    yield from items.end()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["\\", '"', "],[", "{", '\\"']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, max_size=5), st.sampled_from([None, 1]), st.booleans(), st.integers(1, 20))
def test_items_are_found_wherever_the_body_is_cut(
    values: list[object], indent: int | None, text: bool, size: int
) -> None:
    body = f" \r\n{json.dumps(values, indent=indent, ensure_ascii=text)}\n".encode()
    assert [json.loads(item) for item in cut(Array(), body, size)] == values
    lines = "\r\n".join(json.dumps(value, ensure_ascii=text) for value in values)
    assert [json.loads(item) for item in cut(Lines(), f"\n{lines}".encode(), size)] == values


@example("[1}1]", 1)
@settings(max_examples=60, deadline=None)
@given(st.text('[]{},"\\ 1', max_size=12), st.integers(1, 5))
def test_what_is_no_array_is_refused(text: str, size: int) -> None:
    """As Python's parser sees it: either both take it, with the same items, or both refuse it."""
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    try:
        found = [json.loads(item) for item in cut(Array(), text.encode(), size)]
    except (HTTPProblem, ValueError):
        found = None
    assert found == (expected if isinstance(expected, list) else None)


def test_each_item_is_a_request(http: httpx.Client, client: Client) -> None:
    first = http.post(BATCH, content=b'[{"a":  1}, "\xc3\xa4",3 ]', headers={**JSON, "Titanic-Priority": "7"})
    second = http.post(BATCH, content=b'{"b": 2}\n\n[]', headers=LINES)
    assert (first.status_code, second.status_code) == (202, 202)
    uuids = first.json()["uuids"] + second.json()["uuids"]
    rows, _ = client.list()
    assert [row["uuid"] for row in rows] == uuids
    assert [row["body_bytes"] for row in rows] == [9, 4, 1, 8, 2]  # as they were written
    assert [row["priority"] for row in rows] == [7, 7, 7, 4, 4]
    assert http.post(BATCH, content=b" [ ] ", headers=JSON).json() == {"uuids": []}


def test_a_batch_that_is_sent_again_is_the_same(http: httpx.Client, client: Client) -> None:
    body = b"[" + b",".join(b"%d" % number for number in range(1500)) + b"]"
    uuids = [http.post(BATCH, content=body, headers={**JSON, "Idempotency-Key": "x" * 240}).json() for _ in range(2)]
    assert uuids[0] == uuids[1]
    assert len(set(uuids[0]["uuids"])) == client.stats()["store"]["requests"] == 1500


def test_a_key_stands_for_one_batch(http: httpx.Client, client: Client) -> None:
    headers = {**JSON, "Idempotency-Key": "import 3"}
    uuids = http.post(BATCH, content=b"[1, 2]", headers=headers).json()["uuids"]
    answer = http.post(BATCH, content=b"[1, 2, 3]", headers=headers)
    assert (answer.status_code, answer.json()["uuid"], answer.json()["stored"]) == (422, uuids[0], 0)
    assert [row["uuid"] for row in client.list()[0]] == uuids
    assert client.show(uuids[0])["type"] == "application/json"


def test_a_key_of_an_item_that_a_single_request_has_is_told(http: httpx.Client, client: Client) -> None:
    headers = {**JSON, "Idempotency-Key": "b"}
    single = http.post("/v1/services/batch/requests", content=b"x", headers={"Idempotency-Key": "b/1"}).json()["uuid"]
    answer = http.post(BATCH, content=b"[1, 2]", headers=headers)
    assert (answer.status_code, answer.json()["uuid"], answer.json()["stored"]) == (422, single, 0)
    assert [row["uuid"] for row in client.list()[0]] == [single]


def test_when_a_later_message_fails_it_is_told_how_far_it_came(http: httpx.Client, client: Client) -> None:
    body = b"\n".join([b"1"] * 1500 + [b"oops"])
    answer = http.post(BATCH, content=body, headers=LINES)
    assert answer.status_code == 400
    problem = answer.json()
    assert "item 1500" in problem["detail"]
    assert problem["stored"] == len(problem["uuids"]) == client.stats()["store"]["requests"] == 1000


@pytest.mark.web(max_body=1000)
def test_an_item_too_large_is_refused_before_it_is_there(http: httpx.Client, client: Client) -> None:
    """All others may be larger together."""
    for headers, begin, between in ((JSON, b"[", b","), (LINES, b"", b"\n")):
        small = between.join([b'"%s"' % (b"x" * 300)] * 10)
        answer = http.post(BATCH, content=begin + small + between + b'"' + b"x" * 2000, headers=headers)
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")
        assert answer.json()["stored"] == 9  # three in a message
    assert client.stats()["store"]["requests"] == 18


@pytest.mark.settings(limits={b"echo": ServiceLimits(waiting=1200)})
def test_a_message_is_stored_whole_or_not_at_all(http: httpx.Client, client: Client) -> None:
    answer = http.post(BATCH, content=b"1\n" * 2500, headers=LINES)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["stored"] == client.stats()["store"]["requests"] == 1000


WRONG = [
    (b"[1", JSON, 400),
    (b'{"a": 1}', JSON, 400),
    (b"", JSON, 400),
    (b"[1] 2", JSON, 400),
    (b"[1,]", JSON, 400),
    (b"[NaN]", JSON, 400),
    (b"[\xff]", JSON, 400),
    (b"[" * 100_000 + b"]" * 100_000, JSON, 400),
    (b"1 2", LINES, 400),
    (b"[1]", {"Content-Type": "text/plain"}, 415),
    (b"[1]", {}, 415),
]


@each(
    ("item", "message"),
    [
        (
            b"{'a': 1}",
            """item 1 is not JSON: "{'a': 1}"; the error is at character 1, counted from 0; put strings and """,
        ),
        (
            b"oops",
            "item 1 is not JSON: 'oops'; the error is at character 0, counted from 0; put strings and names into ",
        ),
        (b"NaN", "item 1 is not JSON: 'NaN'; JSON has no NaN; send null, or a string"),
        (b'"\xff"', "; it is not UTF-8 from byte 1 on; send UTF-8"),
        (b"", "; there is nothing between two commas; remove one of them"),
        (b"[" * 100_000 + b"]" * 100_000, "; it is nested too deeply; send it as a string, or submit it alone"),
    ],
)
def test_an_error_names_the_item_and_the_fix(http: httpx.Client, item: bytes, message: str) -> None:
    answer = http.post(BATCH, content=b"[1," + item + b",3]", headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("item 1 is not JSON: ")
    assert message in answer.json()["detail"]


def test_a_number_may_have_any_digits(http: httpx.Client, client: Client) -> None:
    body = b"1" * 5000
    (uuid,) = http.post(BATCH, content=b"[" + body + b"]", headers=JSON).json()["uuids"]
    assert client.look(uuid).body == [body]


def test_what_is_no_batch_is_refused(http: httpx.Client, client: Client) -> None:
    for body, headers, status in WRONG:
        answer = http.post(BATCH, content=body, headers=headers)
        assert answer.status_code == status, body[:20]
        assert len(answer.json()["detail"]) < 400
    assert client.stats()["store"]["requests"] == 0
