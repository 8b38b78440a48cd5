"""Clients that are generated from the OpenAPI document of a running gateway submit a request, and follow it to its end.

`make tools` installs npm. The test itself installs openapi-typescript, openapi-fetch and typescript, in these versions,
in build/, where they stay.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import IN_ITS_FOLDER
from support.serving import QUICK

from broker import Worker
from titanic import Server

PYTHON = """
import sys
from io import BytesIO

from made import Client
from made.api.requests import close, list_, reply, show, submit
from made.api.services import workers
from made.models import Accepted, Problem, Request, RequestPage, RequestState, WorkerList
from made.types import File

client = Client(base_url=sys.argv[1])
accepted = submit.sync("upper", client=client, body=File(BytesIO(b"hello")), titanic_priority=7)
assert isinstance(accepted, Accepted)
replied = reply.sync(accepted.uuid, client=client, wait=30)
assert isinstance(replied, File)
assert replied.payload.read() == b"HELLO"
shown = show.sync(accepted.uuid, client=client)
assert isinstance(shown, Request)
assert shown.state is RequestState.DONE
assert (shown.service, shown.priority, shown.body_bytes) == ("upper", 7, 5)
assert shown.submitted_at.utcoffset().total_seconds() == 0
page = list_.sync(client=client, service="upper")
assert isinstance(page, RequestPage)
assert [row.uuid for row in page.requests] == [accepted.uuid]
listed = workers.sync(client=client)
assert isinstance(listed, WorkerList)
assert [(one.services, one.slots, one.requests) for one in listed.workers] == [(["upper"], 1, [])]
assert listed.workers[0].registered_at.utcoffset().total_seconds() == 0
assert close.sync_detailed(accepted.uuid, client=client).status_code == 204
gone = show.sync(accepted.uuid, client=client)
assert isinstance(gone, Problem)
assert (gone.status, gone.type_) == (410, "urn:titanic:problem:unknown-request")
"""

TYPESCRIPT = """
import { strictEqual } from "node:assert";
import createClient from "openapi-fetch";
import type { components, paths } from "./made.js";

const client = createClient<paths>({ baseUrl: process.argv[2] });

const submitted = await client.POST("/v1/services/{service}/requests", {
  params: { path: { service: "upper" }, header: { "Titanic-Priority": 7 } },
  headers: { "Content-Type": "text/plain" },
  body: "hello",
  bodySerializer: (body) => body,
});
if (typeof submitted.data !== "object") throw new Error(JSON.stringify(submitted.error));
const accepted: components["schemas"]["Accepted"] = submitted.data;

const path = { uuid: accepted.uuid };
const query = { wait: 30 };
const replied = await client.GET("/v1/requests/{uuid}/reply", { params: { path, query }, parseAs: "text" });
strictEqual(replied.response.status, 200);
strictEqual(replied.data, "HELLO");

const shown = await client.GET("/v1/requests/{uuid}", { params: { path } });
if (shown.data === undefined) throw new Error(shown.error.detail);
const request: components["schemas"]["Request"] = shown.data;
strictEqual(request.state, "done" satisfies typeof request.state);
strictEqual(request.type, "text/plain");
strictEqual(request.priority, 7);
strictEqual(request.paused, undefined);

const listed = await client.GET("/v1/workers");
const [worker] = listed.data?.workers ?? [];
if (worker === undefined) throw new Error(JSON.stringify(listed));
const told: [string[], number, number] = [worker.services, worker.slots, worker.requests.length];
strictEqual(JSON.stringify(told), '[["upper"],1,0]');

const audit = await client.GET("/v1/audit", { params: { query: { act: "kill", last: 60 } } });
const acts: components["schemas"]["Act"][] | undefined = audit.data?.acts;
strictEqual(acts?.length, 0);

const closed = await client.DELETE("/v1/requests/{uuid}", { params: { path } });
strictEqual(closed.response.status, 204);

const gone = await client.GET("/v1/requests/{uuid}", { params: { path } });
const problem: components["schemas"]["Problem"] | undefined = gone.error;
strictEqual(problem?.status, 410);
strictEqual(problem?.type, "urn:titanic:problem:unknown-request");
"""

PACKAGES = {
    "private": True,
    "type": "module",
    "dependencies": {
        "@types/node": "20.19.0",
        "openapi-fetch": "0.17.0",
        "openapi-typescript": "7.13.0",
        "typescript": "5.9.3",
    },
}


@pytest.fixture
def worker(server: Server) -> Iterator[None]:
    with Worker("upper", lambda frames: [frames[0].upper()], server.endpoints[0], config=QUICK):
        yield


def run(*command: str | Path, folder: Path) -> str:
    """What a command says that must succeed."""
    env = {**os.environ, **IN_ITS_FOLDER, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_python_client_is_generated_and_works(web: str, worker: None, tmp_path: Path) -> None:
    url = f"{web}/v1/openapi.json"
    said = run("openapi-python-client", "generate", "--url", url, "--meta=none", "--output-path=made", folder=tmp_path)
    assert "will not be generated" not in said
    (tmp_path / "use.py").write_text(PYTHON)
    run(sys.executable, "use.py", web, folder=tmp_path)


@pytest.mark.timeout(600)
def test_a_typescript_client_is_generated_and_works(web: str, worker: None, tmp_path: Path) -> None:
    build = Path(__file__).parents[4] / "build/npm"
    build.mkdir(parents=True, exist_ok=True)
    (tmp_path / "package.json").write_text(text := json.dumps(PACKAGES))
    (build / "package.json").write_text(text)
    run("npm", "install", "--no-audit", "--no-fund", "--fetch-retries=5", "--prefer-offline", folder=build)
    (tmp_path / "node_modules").symlink_to(build / "node_modules")
    tools = build / "node_modules" / ".bin"
    run(tools / "openapi-typescript", f"{web}/v1/openapi.json", "-o", "made.ts", folder=tmp_path)
    (tmp_path / "use.ts").write_text(TYPESCRIPT)
    usual = ("--skipLibCheck", "--module", "nodenext", "--target", "es2022")  # the types of Node itself take seconds
    run(tools / "tsc", "--strict", *usual, "use.ts", folder=tmp_path)
    run("node", "use.js", web, folder=tmp_path)
