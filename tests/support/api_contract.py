"""schemathesis against the gateway: what it cannot know of the document by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis.cli import schemathesis as command

from titanic.web.request_headers import MAX_WAIT, NUMBER

CHARACTERS = st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")).filter(str.isprintable)
SERVICES = st.text(CHARACTERS, min_size=1, max_size=60).filter(
    lambda name: not name.startswith(("mmi.", "titanic.")) and len(name.encode()) <= 255
) | st.sampled_from(["x" * length for length in (254, 255, 256)])
"""Names of services. `.` and `..` are left out: the client takes them for folders. schemathesis asks for the lengths at
the limit, and would look for seconds where there are none."""

schemathesis.openapi.format("service-name", SERVICES.filter(lambda name: name.strip(".") != ""))
schemathesis.openapi.media_type("application/x-ndjson", st.lists(st.sampled_from([b"1", b"{}", b'""'])).map(b"\n".join))

UNKNOWN = "x-schemathesis-unknown-property"

EXCLUSIVE = {"Titanic-Unique-Until", "Titanic-Unique-For", "Titanic-At"}
"""Headers that exclude others, and a time of at most ten years from now."""

PRIORITY = "Titanic-Priority"
"""A header that links between calls fill with a number of another answer, whatever its schema says."""

PATIENCE = 0.05
"""Seconds that a call waits for a reply. There are no workers: none comes."""


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Let no call wait for long, and say what the document cannot."""
    wait = str((case.query or {}).get("wait"))  # which may be a number or the text of one
    if NUMBER.fullmatch(wait) and PATIENCE < float(wait) <= MAX_WAIT:
        case.query["wait"] = PATIENCE
    if "wait" in str((case.headers or {}).get("Prefer")):
        case.headers["Prefer"] = "wait=0"
    if case.path.endswith(":failed") and "fatal" in (case.query or {}):
        case.query.pop("retry-after", None)  # they exclude each other


@schemathesis.hook
def filter_failure(context: schemathesis.HookContext, failure: Any, case: schemathesis.Case, response: Any) -> bool:
    """A header that nobody knows makes no request wrong, and a body comes back as it was submitted, whatever type its
    submission gave it."""
    if failure.title == "Content deserialization error" and case.path.endswith(("/body", "/reply")):
        return False
    if response is not None and response.status_code == 503 and "full" in response.text:
        return False  # by limits that another call has set
    headers = {name.title(): str(value) for name, value in (case.headers or {}).items()}
    if failure.title == "Schema-valid request rejected" and (
        headers.keys() & EXCLUSIVE
        or case.method == "PATCH"
        or case.path == "/v1/jobs"
        or len(headers.get(PRIORITY, "0")) != 1
        or (isinstance(case.body, dict) and any(map(_is_whole_float, case.body.values())))
    ):
        return False  # which OpenAPI cannot say
    return not (failure.title == "Schema-violating request accepted" and UNKNOWN in (case.headers or {}))


def _is_whole_float(value: object) -> bool:
    """Whether it is written like 5.0, an integer of JSON Schema, which the API refuses."""
    return isinstance(value, float) and value.is_integer()


ENDLESS = ("/v1/events", "/v1/services/{service}:take")
"""A stream does not end, and to take a request one must wait for it."""

CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 409, 410, 422, 424]
"""


def run(folder: Path, url: str, *arguments: str) -> int:
    """The exit code of `schemathesis run` with all checks."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    usual = ["--checks=all", "--no-color", "--generation-database=none"]
    for path in ENDLESS:
        usual.append(f"--exclude-path={path}")
    try:
        command.main(
            ["--config-file", str(config), "run", f"{url}/v1/openapi.json", *usual, *arguments], standalone_mode=False
        )
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0
