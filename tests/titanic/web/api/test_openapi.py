"""The OpenAPI document says what the HTTP API does: each route has its entry, and schemathesis finds nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from support import torture
from support.each import each

from titanic import Client
from titanic.web.api import openapi
from titanic.web.api.routes import PATHS, ROUTES
from titanic.web.problems import TITLES

METHODS = {"get", "post", "put", "delete", "patch"}


def test_each_route_is_in_the_document_and_nothing_else() -> None:
    known = set()
    for resource in ROUTES:
        known |= {(resource.path, method.lower()) for method in resource.methods}
    known = {(path, method) for path, method in known if method in METHODS}
    assert known == {(path, method) for path, item in PATHS.items() for method in item if method in METHODS}


def test_each_operation_is_described(http: httpx.Client) -> None:
    document = http.get("/v1/openapi.json").json()
    names = []
    for path, item in document["paths"].items():
        for method in METHODS & item.keys():
            operation = item[method]
            names.append(operation["operationId"])
            assert operation["summary"]
            assert len(operation["responses"]) > 1, path
            for one in operation.get("parameters", []) + item.get("parameters", []):
                assert one["description"].endswith("."), one
    assert len(set(names)) == len(names)
    assert {int(status) for status in document["components"]["responses"]} <= TITLES.keys()


def test_counts_have_a_minimum_however_deep_they_stand(http: httpx.Client) -> None:
    schemas = http.get("/v1/openapi.json").json()["components"]["schemas"]
    usual = schemas["UsualTimes"]
    assert usual["properties"]["attempts"] == schemas["ServiceHistory"]["properties"]["failed"]
    assert sorted(usual["required"]) == ["attempts", "run", "wait"]


def test_each_path_finds_its_own_route() -> None:
    """The name of a service may contain colons, and the first route that matches is taken."""
    for route in ROUTES:
        path = re.sub(r"\{\w+\}", "0" * 32, route.path).encode()
        assert next(one.path for one in ROUTES if one.parameters(path) is not None) == route.path


def documents() -> Iterator[tuple[str, type]]:
    """What is answered as JSON to GET without parameters, and its declaration."""
    declared = {one.__name__: one for one in openapi.DOCUMENTS}
    for path, item in PATHS.items():
        if "get" in item and "{" not in path:
            schema = item["get"]["responses"]["200"].get("content", {}).get("application/json", {}).get("schema", {})
            if "$ref" in schema:
                yield path, declared[schema["$ref"].rpartition("/")[2]]


ANSWERS = dict(documents())
QUERIES = ("/v1/history?service=upper&failures=true", "/v1/audit?refusals=true&last=60")


@pytest.mark.web(hooks=True)
@each(("path", "document"), [*ANSWERS.items(), *((query, ANSWERS[query.partition("?")[0]]) for query in QUERIES)])
def test_answers_are_as_declared(http: httpx.Client, client: Client, path: str, document: type) -> None:
    headers = {
        "Titanic-Limit": "5",
        "Titanic-TTL": "60",
        "traceparent": f"00-{1:032x}-{1:016x}-01",
        "tracestate": "a=1",
    }
    uuid = http.post("/v1/services/upper/requests", content=b"x", headers=headers).json()["uuid"]
    msgspec.convert(http.put("/v1/services/upper/limits", json={"running": 4}).json(), openapi.BoundsInForce)
    msgspec.convert(http.get(path).json(), document)
    shown = http.get(f"/v1/requests/{uuid}").json()
    msgspec.convert(shown, openapi.Request)
    assert shown.keys() <= openapi.Request.__annotations__.keys()
    for paused in (True, False):
        client.set_service("upper", paused=paused)
    http.put("/v1/services/upper/limits", json={"running": 5})  # a new sample is taken
    row = next(one for one in http.get("/v1/services").json()["services"] if one["name"] == "upper")
    assert row.keys() == openapi.Service.__annotations__.keys() | openapi.ServiceNumbers.__annotations__.keys()
    msgspec.convert(row, openapi.Service)


def test_headers_of_numbers_have_bounds() -> None:
    parts = [
        (one["name"], part) for one in openapi.SUBMIT_HEADERS for part in one["schema"].get("anyOf", [one["schema"]])
    ]
    numbers = {name: part.keys() for name, part in parts if part.get("type") in ("integer", "number")}
    assert {"Titanic-Key-For", "Titanic-Priority", "Titanic-Keep"} <= numbers.keys()
    assert all({"minimum", "maximum"} <= members for members in numbers.values())


@pytest.mark.torture(short=True)
@pytest.mark.filterwarnings("ignore:Exception in thread schemathesis:pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.timeout(torture.MOST_SECONDS if torture.LONG else 600)  # on a busy machine it takes minutes
@pytest.mark.settings(capacity=4 << 30)
@pytest.mark.web(hooks=True)
def test_schemathesis_finds_nothing(
    web: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all its checks; 10,000 cases in the long run. Otherwise limits of values are tried at every other path."""
    from support import api_contract  # schemathesis takes a while, and each test process imports this module

    monkeypatch.chdir(tmp_path)  # it leaves things where it runs
    some = [f"--include-path={path}" for path in torture.part([*PATHS], 13)]
    short = [["--max-examples=2", "--phases=fuzzing,stateful"], ["--phases=coverage", *some]]
    cases = 0
    for options in [["--max-examples=800"]] if torture.LONG else short:
        code = api_contract.run(tmp_path, web, f"--seed={torture.SEED}", *options)
        said = capsys.readouterr().out
        assert code == 0, said
        cases += int(re.findall(r"([0-9,]+) generated", said)[0].replace(",", ""))
    assert cases >= (10_000 if torture.LONG else 100)
