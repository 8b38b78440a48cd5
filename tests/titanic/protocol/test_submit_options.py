"""The options of a request are declared in `messages.Submit`; whatever else names them agrees."""

from __future__ import annotations

import re
from pathlib import Path

from titanic import Client
from titanic.cli.main import main
from titanic.protocol.messages import SUBMIT_NUMBERS, Submit
from titanic.protocol.submit_options import TEXTS, ManyOptions, Policy, SharedOptions, SubmitOptions, read_policy
from titanic.tasks import TaskOptions, Tasks
from titanic.web.request_headers import OPTIONS, header_title

PACKAGE = Path(__file__).parents[3] / "titanic"
OF_MANY = {"keys", "traces", "many", "forget"}
"""Of a message, not of a request."""

NAMES = set(Submit.__struct_fields__) - OF_MANY


def test_clients_take_each_option() -> None:
    # A compiled TypedDict does not say what it inherits.
    assert {*SubmitOptions.__annotations__, *ManyOptions.__annotations__, *SharedOptions.__annotations__} == NAMES
    assert set(re.findall(r"^ {8,}(\w+)  +", Client.submit.__doc__ or "", re.MULTILINE)) == NAMES


def test_what_is_no_number_is_text() -> None:
    assert NAMES - {*SUBMIT_NUMBERS, "key_for", "unique_for", "at"} <= set(TEXTS)


def test_tasks_take_each_option_that_is_a_number() -> None:
    assert set(TaskOptions.__annotations__) >= {*SUBMIT_NUMBERS, "key_for"}
    assert set(re.findall(r"^ {8,}(\w+)  +", Tasks.task.__doc__ or "", re.MULTILINE)) >= {*SUBMIT_NUMBERS, "key_for"}


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


def test_the_command_has_each_option_but_those_for_programs() -> None:
    command = main.get_command(None, "submit")
    assert NAMES - {option.name for option in command.params} == {
        "retry_first",
        "retry_most",
        "digest",
        "source",
    }
