"""titanic/LANGUAGES.md: its client, as it is printed, and the worker that it names, run by Node."""

from __future__ import annotations

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.cli_titanic import running
from support.made_programs import INTEROP, in_node, needs, shared_folder
from support.waiting import PATIENCE

PAGE = INTEROP.parents[1] / "titanic/LANGUAGES.md"
PRINTED = "tcp://127.0.0.1:5555"


@needs("npm", package="npm")
def test_a_client_and_a_worker_in_node(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The worker finds the server again that was killed, with the client's next request."""
    folder = shared_folder(tmp_path_factory)
    node, worker = in_node(folder, "worker.mjs")
    (name, printed), *_ = re.findall(r"```js\n// (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    endpoint = "tcp://127.0.0.1:*"
    client = folder / f"{tmp_path.name}-{name}"
    with ExitStack() as stack:
        for number in "12":
            log = tmp_path / f"serve-{number}.log"
            server = stack.enter_context(running(log, "serve", "--store", tmp_path / "store", "--bind", endpoint))
            endpoint = server.says(r"serving at (tcp://[\d.:]+)")[1]
            if number == "1":
                process = stack.enter_context(subprocess.Popen([node, worker, endpoint, "upper"]))
                stack.callback(process.kill)
            client.write_text(printed.replace(PRINTED, endpoint))
            done = subprocess.run([node, client, number], capture_output=True, text=True, timeout=PATIENCE, check=False)
            assert done.stdout == "[ '200', 'HELLO' ]\n", done
            server.kill()
