"""The options of a request are declared in `messages.Submit`; whatever else names them agrees."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from titanic import Client
from titanic.cli.main import main
from titanic.cli.stored_requests import _lines
from titanic.protocol.documents import RequestInfo
from titanic.protocol.messages import OF_ONE_SUBMIT, SUBMIT_KINDS, Submit
from titanic.protocol.submit_options import TEXT_OPTIONS, ManyOptions, Policy, SharedOptions, SubmitOptions, read_policy
from titanic.services.list_requests import as_document
from titanic.store import Description, State
from titanic.tasks import TaskOptions, Tasks
from titanic.web.api import openapi
from titanic.web.pages.requests import OWN, options_of
from titanic.web.request_headers import OPTIONS, header_title

PACKAGE = Path(__file__).parents[3] / "titanic"
OF_MANY = {"keys", "traces", "many", "forget"}
"""Of a message, not of a request."""

UUID = bytes(range(16))

NAMES = set(Submit.__struct_fields__) - OF_MANY
NUMBERS = {name for name, kind in SUBMIT_KINDS.items() if kind is not str}


def test_clients_take_each_option() -> None:
    # A compiled TypedDict does not say what it inherits.
    assert {*SubmitOptions.__annotations__, *ManyOptions.__annotations__, *SharedOptions.__annotations__} == NAMES
    assert set(re.findall(r"^ {8,}(\w+)  +", Client.submit.__doc__ or "", re.MULTILINE)) == NAMES


def test_what_is_no_number_is_text() -> None:
    assert NAMES - NUMBERS - {"key_for", "at"} <= set(TEXT_OPTIONS)


def test_tasks_take_each_option_that_is_a_number() -> None:
    assert set(TaskOptions.__annotations__) >= {*NUMBERS, "key_for"}
    assert set(re.findall(r"^ {8,}(\w+)  +", Tasks.task.__doc__ or "", re.MULTILINE)) >= {*NUMBERS, "key_for"}


def test_what_only_one_message_has_is_declared() -> None:
    assert {*Submit.__struct_fields__} >= OF_ONE_SUBMIT


def test_a_copy_of_a_request_has_each_option_but_its_own() -> None:
    row: Any = dict.fromkeys(RequestInfo.__annotations__, 5) | {"submitted_at": 1}
    row["options"] = dict.fromkeys(Policy._fields, 5.0)
    assert options_of(row).keys() == NAMES - OWN - {"key", "key_for", "source", "at"}
    assert set(Policy._fields) >= OWN


def test_the_policy_has_options_of_a_request() -> None:
    assert set(Policy._fields) <= NAMES
    assert read_policy(b'{"limit": 5, "digest": "ab"}') == Policy(limit=5, digest="ab")


def test_each_option_is_in_the_documents() -> None:
    protocol = (PACKAGE / "PROTOCOL.md").read_text()
    assert [
        name for name in Submit.__struct_fields__ if not re.search(rf"^\| `{name}` \|", protocol, re.MULTILINE)
    ] == []
    http = (PACKAGE / "web" / "HTTP.md").read_text()
    assert [name for name in OPTIONS if f"`{header_title(name)}`" not in http] == []
    assert {one.option for one in OPTIONS.values()} <= NAMES


def test_each_option_is_a_header_or_has_another() -> None:
    assert NAMES - {one.option for one in OPTIONS.values()} == {
        *("key", "trace", "tracestate", "type", "digest"),  # headers of HTTP's own
        "source",
    }


def test_labels_are_in_their_document() -> None:
    (labels,) = re.findall(r"^- \*labels\*: (.*?) are$", (PACKAGE / "taskiq" / "README.md").read_text(), re.M | re.S)
    known = re.findall(r"`(\w+)(…?)`", labels)
    assert [name for name in SUBMIT_KINDS if not any(re.fullmatch(a + r"\w*" * bool(b), name) for a, b in known)] == []


def test_what_is_stored_is_shown() -> None:
    spans = Policy(**dict.fromkeys(NUMBERS & {*Policy._fields}, 5.0)).spans
    texts = {name: "5" for name in Policy._fields if name not in spans}
    options = json.dumps(spans | texts).encode()
    stored = Description(UUID, 5, options=options, state=State.DONE, body_frames=1, body_bytes=2, attempts=1)
    row: Any = as_document(stored, running=False)
    assert openapi.AttemptOptions.__annotations__.keys() == row["options"].keys() == spans.keys()
    assert texts.keys() <= RequestInfo.__annotations__.keys() & row.keys()
    assert set(Policy._fields) - {name.replace(" ", "_") for name, _ in _lines(row)} == {"unique_until"}  # with unique
    page = (PACKAGE / "web" / "templates" / "request.html").read_text()
    help_text = main.get_command(None, "show").help or ""
    assert [name for name in Policy._fields if not re.search(rf"\b{name}\b", help_text)] == []
    assert [name for name in Policy._fields if not re.search(rf"row\.(options\.)?{name}\b|\"{name}\"", page)] == []


def test_the_command_has_each_option_but_those_for_programs() -> None:
    command = main.get_command(None, "submit")
    assert NAMES - {option.name for option in command.params} == {
        "retry_first",
        "retry_most",
        "digest",
        "source",
    }
