"""One server for each file of tests, with workers that answer at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cli_titanic import serving
from support.waiting import until

from broker import RemoteError, Worker


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server where what fails has failed for good at the second attempt."""
    options = ("--retry-first", "0.01", "--max-attempts", "2", "--max-body", "8MiB")
    with serving(tmp_path_factory.mktemp("serve"), *options) as (_, endpoint):
        yield endpoint


def _fail(frames: list[bytes]) -> list[bytes]:
    raise RemoteError(500, "no way", [b"said the worker\n"])


@pytest.fixture(scope="module")
def workers(endpoint: str) -> Iterator[None]:
    """`echo` gives back the body, `bars` puts bars between frames, `fail` fails."""
    with (
        Worker("echo", lambda frames: frames, endpoint) as echo,
        Worker("bars", b"|".join, endpoint) as bars,
        Worker("fail", _fail, endpoint) as fail,
    ):
        until(lambda: all(worker.registered for worker in (echo, bars, fail)))
        yield
