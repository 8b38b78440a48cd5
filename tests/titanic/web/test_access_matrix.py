"""Who may do what over HTTP: all calls of the HTTP API and actions of the console, by every kind of user; one table for
all. It says what tests/system/test_access_matrix.py says of peers that speak ZeroMQ: the server decides, not the
gateway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route
from support.access_matrix import OTHERS, Table
from support.waiting import until
from support.web_matrix import DONE, Scene, web_matrix

from titanic.web.api.routes import PATHS
from titanic.web.pages import ROUTES as CONSOLE

TABLE = """
action                needs              nothing  without         elsewhere  right   other's  all   admin
--------------------  -----------------  -------  --------------  ---------  ------  -------  ----  -----
submit                submit             403      403             403        202     –        –     202
submit with a key     submit             403      403             403        202     –        –     202
submit and wait       submit read        403      403, 202        403        200     –        –     200
batch                 submit             403      403             403        202     –        –     202
batch with a key      submit             403      403             403        202     –        –     202
show                  read               403      403             –          200     410      200   200
body                  read               403      403             –          200     410      200   200
reply                 read               403      403             –          200     410      200   200
reply, waiting        read               403      403             –          200     410      200   200
list                  read               403      403             –          seen    unseen   seen  seen
retry                 submit read        403      403, 403        403        202     410      202   202
retry with body       submit read        403      403, 403        403        204     410      403   204
change                submit close read  403      403, 403, 403   403        204     410      204   204
change body           submit close read  403      403, 403, 403   403        204     410      204   204
close                 close read         403      403, 403        –          204     kept     204   204
services              metrics            403      403             –          200     –        –     200
set limits            admin              403      403             –          200     –        –     200
stats                 metrics            403      403             –          200     –        –     200
workers               metrics            counted  counted         –          listed   –        –     listed
workers, reading      read               counted  –               –          counted  –        listed  listed
stats, reading        read               403      –               –          403     –        200   200
history               metrics            403      403             –          200     –        –     200
history, reading      read               403      –               –          403     –        200   200
audit                 audit              403      403             –          200     –        –     200
events                metrics            403      403             –          200     –        –     200
events of a request   read               refused  refused         –          done    unknown  done  done
take                  work               403      403             403        200     –        –     403
done                  work               410      410             410        204     410      –     410
failed                work               410      410             410        204     410      –     410
extend                work               410      410             410        200     410      –     410
hooks                 read               403      403             –          unseen  unseen   seen  seen
hook                  read               403      403             –          –       404      200   200
put a hook            admin              403      403             –          201     –        –     201
delete a hook         close read         403      404, 403        –          –       404      204   204
start a job           close read         403      403, 403        –          202     –        –     202
jobs                  read               403      403             –          seen    unseen   seen  seen
job                   read               403      403             –          200     404      200   200
change a job          read               403      403             –          200     404      409   200
page: all that match  close read         403      403, 403        –          303     –        –     303
schedules             read               403      403             –          200     –        –     200
session               –                  200      –               –          200     –        –     200
end own sessions      –                  204      –               –          204     –        –     204
end sessions          admin              403      403             –          204     –        –     204
openapi               –                  200      –               –          200     –        –     200
page: retry           submit read        403      403, 403        403        303     404      303   303
page: start           submit close read  403      403, 403, 403   403        303     404      303   303
page: close           close read         403      403, 403        –          303     kept     303   303
page: retry these     submit read        403      left, 403       left       303     left     303   303
page: close these     close read         403      403, 403        –          303     kept     303   303
page: stop            read               403      403             –          303     404      409   303
page: pause service   admin              403      403             –          303     –        –     303
page: set ends        admin              403      403             –          303     –        –     303
page: set limits      admin              403      403             –          303     –        –     303
page: pause           submit read        403      403, 403        403        303     –        –     303
page: resume          submit read close  403      left, 403, 403  left       303     –        –     303
page: run             submit read        403      403, 403        403        303     404      303   303
page: end own sessions  –                  303      –               –          303     –        –     303
page: end sessions    admin              403      403             –          303     –        –     303
page: ask to run      submit read        403      403, 403        403        303     –        –     303
page: run again       submit read        403      403, 403        403        303     404      303   303
"""
"""Columns: what the action needs, and who tries it. Without a token, or with one that nobody has, all of it is `401`.

nothing    a user who may do nothing
without    users who have every permission but the one that is needed, and not admin; for each that is needed
elsewhere  what is needed, for the services other.* only
right      what is needed and nothing else, with read = "own"; the request is his own
other's    the same, but the request, lease, hook or work is somebody else's
all        the same with read = "all"
admin      admin = true and nothing else; the request, lease, hook or work is somebody else's

Outcomes are statuses of answers. `kept`, `left`: nobody is told no, and nothing is done; what is refused by a status is
not done either; a page answers 303 when it has done it. `seen`, `unseen`: whether it is in the list. `listed`,
`counted`: whether each worker is shown, or only their number. Of a request that
is followed: the state that its event tells.
"""

MATRIX = Table(TABLE)

CALLS = {
    "submit": "POST /v1/services/{service}/requests",
    "batch": "POST /v1/services/{service}/requests:batch",
    "show": "GET /v1/requests/{uuid}",
    "body": "GET /v1/requests/{uuid}/body",
    "reply": "GET /v1/requests/{uuid}/reply",
    "list": "GET /v1/requests",
    "retry": "POST /v1/requests/{uuid}:retry",
    "change": "PATCH /v1/requests/{uuid}",
    "change body": "PUT /v1/requests/{uuid}/body",
    "retry with body": "PUT /v1/requests/{uuid}/body",
    "close": "DELETE /v1/requests/{uuid}",
    "services": "GET /v1/services",
    "set limits": "PUT /v1/services/{service}/limits",
    "workers": "GET /v1/workers",
    "stats": "GET /v1/stats",
    "history": "GET /v1/history",
    "schedules": "GET /v1/schedules",
    "audit": "GET /v1/audit",
    "events": "GET /v1/events",
    "take": "POST /v1/services/{service}:take",
    "done": "POST /v1/leases/{lease}:done",
    "failed": "POST /v1/leases/{lease}:failed",
    "extend": "POST /v1/leases/{lease}:extend",
    "hooks": "GET /v1/hooks",
    "hook": "GET /v1/hooks/{hook}",
    "put a hook": "PUT /v1/hooks",
    "delete a hook": "DELETE /v1/hooks/{hook}",
    "start a job": "POST /v1/jobs",
    "jobs": "GET /v1/jobs",
    "job": "GET /v1/jobs/{job}",
    "change a job": "PATCH /v1/jobs/{job}",
    "page: all that match": "POST /requests/all",
    "session": "GET /v1/session",
    "end own sessions": "DELETE /v1/sessions",
    "openapi": "GET /v1/openapi.json",
    "page: retry": "POST /actions/requests/{uuid}/retry",
    "page: start": "POST /actions/requests/{uuid}/start",
    "page: close": "POST /actions/requests/{uuid}/close",
    "page: close these": "POST /actions/requests",
    "page: stop": "POST /actions/works/{job}",
    "page: pause service": "POST /actions/services",
    "page: set ends": "POST /actions/services/ends",
    "page: set limits": "POST /actions/services/limits",
    "page: pause": "POST /actions/schedules/pause",
    "page: resume": "POST /actions/schedules/resume",
    "page: run": "POST /actions/schedules/run",
    "page: end own sessions": "POST /actions/users/sessions",
    "page: end sessions": "POST /actions/users/sessions",
    "page: ask to run": "POST /actions/schedules/run",
    "page: run again": "POST /actions/requests/{uuid}/again",
}
"""What each action is as a call, of those that are called in one way only."""

FORM = {"Content-Type": "application/x-www-form-urlencoded"}

UNNEEDED = {"POST /login", "POST /logout", "POST /requests/selected"}
"""Calls that need no permission: a session begins and ends, and a page asks whether one is sure."""


# -- the actions: what is called, and how the outcome is told ----------------------------------------------------------


def submitted(scene: Scene, user: str, owner: str, action: str) -> str:
    """A request, or a batch of them."""
    headers = {"Content-Type": "application/json"}
    if "key" in action:
        headers["Idempotency-Key"] = scene.new_name()
    if "wait" in action:
        headers["Prefer"] = "wait=30"
    path = f"/v1/services/{DONE}/requests{':batch' * ('batch' in action)}"
    return status(scene.program(user).post(path, content=b"[1]", headers=headers))


def read(scene: Scene, user: str, owner: str, action: str) -> str:
    """What is there of a request."""
    uuid = scene.requests[owner].done
    path = {"show": "", "body": "/body", "reply": "/reply", "reply, waiting": "/reply?wait=30"}[action]
    return status(scene.program(user).get(f"/v1/requests/{uuid}{path}"))


def listed(scene: Scene, user: str, owner: str, action: str) -> str:
    answer = scene.program(user).get("/v1/requests", params={"state": "done", "limit": 1000})
    return seen(answer, scene.requests[owner].done)


def changed(scene: Scene, user: str, owner: str, action: str) -> str:
    """A request that is retried or closed, in one of all ways."""
    do, program = "retry" if "retry" in action else "close", scene.program(user)
    uuid = (scene.requests[owner].expired if do == "retry" else scene.requests[owner].waiting).pop()
    if action == "close":
        answer = program.delete(f"/v1/requests/{uuid}")
    elif action == "retry with body":
        answer = program.put(f"/v1/requests/{uuid}/body?retry=true", content=b"other")
    elif action == "retry":
        answer = program.post(f"/v1/requests/{uuid}:retry")
    elif action.endswith(" these"):
        answer = program.post("/actions/requests", data={"do": do, "uuids": uuid})
        if where := answer.headers.get("location"):
            until(lambda: "data-live" not in program.get(where).text)
    else:
        answer = program.post(f"/actions/requests/{uuid}/{do}", headers=FORM)
    is_done = scene.state(uuid) == {"retry": "waiting", "close": "gone"}[do]
    if answer.status_code < 400 and not is_done:
        return {"retry": "left", "close": "kept"}[do]
    assert is_done == (answer.status_code < 400)
    return status(answer)


def moved(scene: Scene, user: str, owner: str, action: str) -> str:
    """A request that waits gets another priority, body, or time."""
    uuid, program = scene.requests[owner].waiting[0], scene.program(user)
    path = f"/v1/requests/{uuid}"
    if action == "page: start":
        return status(program.post(f"/actions/requests/{uuid}/start", headers=FORM))
    return status(program.patch(path, json={"priority": 5}) if action == "change" else program.put(f"{path}/body"))


def fetched(scene: Scene, user: str, owner: str, action: str) -> str:
    """What is the same whoever it is of. Behind a comma the action says how a user comes to the permission."""
    path = CALLS[action.partition(",")[0]].removeprefix("GET ")
    return status(scene.program(user).get(path.replace("{service}", DONE)))


def worked(scene: Scene, user: str, owner: str, action: str) -> str:
    """The workers: what is known of each, or how many there are for the services that the user may use."""
    found = scene.program(user).get("/v1/workers").json()
    if found["workers"] is None:
        assert "it needs metrics = true" in found["reason"]
        return "counted"
    assert {row["user"] for row in found["workers"] if row["name"]} == {"hand", "courier"}
    return "listed"


def events(scene: Scene, user: str, owner: str, action: str) -> str:
    """The first event of a stream."""
    query = {"request": scene.requests[owner].done} if "request" in action else {}
    with scene.program(user).stream("GET", "/v1/events", params=query) as answer:
        if answer.status_code != 200 or not query:
            return str(answer.status_code)
        said = next(line for line in answer.iter_lines() if line.startswith("data: "))
        return re.findall(r'"state": ?"(\w+)"', said)[0]


def taken(scene: Scene, user: str, owner: str, action: str) -> str:
    service = scene.new_name()
    scene.auditor.post(f"/v1/services/{service}/requests", content=b"x")
    return status(scene.program(user).post(f"/v1/services/{service}:take?wait=30"))


def ended(scene: Scene, user: str, owner: str, action: str) -> str:
    """A lease that somebody has."""
    lease = scene.lease(user if owner == user and user.startswith("right") else "victim")
    return status(scene.program(user).post(f"/v1/leases/{lease}:{action}"))


def hooked(scene: Scene, user: str, owner: str, action: str) -> str:
    """A hook of somebody."""
    program, hook = scene.program(user), {"service": scene.new_name(), "url": "https://example.com/hook"}
    if action == "put a hook":
        return status(program.put("/v1/hooks", json=hook))
    made = scene.auditor.put("/v1/hooks", json=hook).json()["id"]
    if action == "hooks":
        return seen(program.get("/v1/hooks"), made)
    if action == "hook":
        return status(program.get(f"/v1/hooks/{made}"))
    answer = program.delete(f"/v1/hooks/{made}")
    assert (scene.auditor.get(f"/v1/hooks/{made}").status_code == 404) == (answer.status_code == 204)
    return status(answer)


def started(scene: Scene, user: str, owner: str, action: str) -> str:
    """A job over all requests that match."""
    if action == "start a job":
        wanted = {"action": "close", "where": {"key": "none"}}
        return status(scene.program(user).post("/v1/jobs", json=wanted))
    return status(scene.program(user).post("/requests/all", data={"do": "close", "key": "none"}))


def job_changed(scene: Scene, user: str, owner: str, action: str) -> str:
    """A job that somebody has started."""
    program, job = scene.program(user), "0" * 32
    whose = program if user == owner else scene.auditor
    wanted = {"action": "retry", "uuids": [scene.requests["victim"].done], "rate": 0.001}
    if (answer := whose.post("/v1/jobs", json=wanted)).status_code == 202:
        job = answer.json()["id"]
    try:
        if action == "jobs":
            return seen(program.get("/v1/jobs"), job)
        if action == "job":
            return status(program.get(f"/v1/jobs/{job}"))
        if action == "change a job":
            return status(program.patch(f"/v1/jobs/{job}", json={"change": "pause"}))
        return status(program.post(f"/actions/works/{job}", data={"do": "cancel"}))
    finally:
        scene.auditor.patch(f"/v1/jobs/{job}", json={"change": "cancel"})


def paused(scene: Scene, user: str, owner: str, action: str) -> str:
    """A service, or a schedule."""
    name, program = scene.new_name(), scene.program(user)
    if action == "page: pause service":
        return status(program.post("/actions/services", data={"service": name, "do": "pause"}))
    if action == "page: set ends":
        return status(program.post("/actions/services/ends", data={"service": name, "on_end": "job.audit"}))
    if action == "set limits":
        return status(program.put(f"/v1/services/{name}/limits", json={"running": 1}))
    if action == "page: set limits":
        limits = {"running": "1", "rate": "", "waiting": "", "bytes": ""}
        return status(program.post("/actions/services/limits", data={"service": name, **limits}))
    if action == "page: ask to run":
        return status(program.post("/actions/schedules/run", data={"name": name}))
    answer = program.post("/actions/schedules/pause", data={"name": name})
    if action == "page: resume":
        answer = program.post("/actions/schedules/resume", data={"name": name})
        if answer.status_code == 303 and "was not paused" in program.get("/schedules").text:
            return "left"
    return status(answer)


def run(scene: Scene, user: str, owner: str, action: str) -> str:
    """The request of a schedule, once more."""
    return status(scene.program(user).post("/actions/schedules/run", data={"uuid": scene.requests[owner].tick}))


def run_again(scene: Scene, user: str, owner: str, action: str) -> str:
    """A request, with its body."""
    uuid = scene.requests[owner].tick
    return status(scene.program(user).post(f"/actions/requests/{uuid}/again", headers=FORM))


def sessions_ended(scene: Scene, user: str, owner: str, action: str) -> str:
    """One's own, or those of another."""
    program, other = scene.program(user), {} if "own" in action else {"user": "victim"}
    if action.startswith("page"):
        return status(program.post("/actions/users/sessions", data=other, headers=FORM))
    return status(program.delete("/v1/sessions", params=other))


def status(answer: httpx.Response) -> str:
    return str(answer.status_code)


def seen(answer: httpx.Response, word: str) -> str:
    if answer.status_code != 200:
        return status(answer)
    return "seen" if word in answer.text else "unseen"


TRIES: dict[str, Callable[[Scene, str, str, str], str]] = {
    **dict.fromkeys(("submit", "submit with a key", "submit and wait", "batch", "batch with a key"), submitted),
    **dict.fromkeys(("show", "body", "reply", "reply, waiting"), read),
    "list": listed,
    **dict.fromkeys(("change", "change body", "page: start"), moved),
    **dict.fromkeys(("retry", "retry with body", "close", "page: retry", "page: close"), changed),
    **dict.fromkeys(("page: retry these", "page: close these"), changed),
    **dict.fromkeys(
        (
            "services",
            "stats",
            "stats, reading",
            "history",
            "history, reading",
            "audit",
            "session",
            "openapi",
            "schedules",
        ),
        fetched,
    ),
    **dict.fromkeys(("workers", "workers, reading"), worked),
    **dict.fromkeys(("events", "events of a request"), events),
    "take": taken,
    **dict.fromkeys(("done", "failed", "extend"), ended),
    **dict.fromkeys(("hooks", "hook", "put a hook", "delete a hook"), hooked),
    **dict.fromkeys(("start a job", "page: all that match"), started),
    **dict.fromkeys(("jobs", "job", "change a job", "page: stop"), job_changed),
    **dict.fromkeys(
        ("page: pause service", "page: set ends", "page: pause", "page: resume", "page: ask to run"), paused
    ),
    **dict.fromkeys(("set limits", "page: set limits"), paused),
    "page: run": run,
    **dict.fromkeys(("end own sessions", "end sessions"), sessions_ended),
    **dict.fromkeys(("page: end own sessions", "page: end sessions"), sessions_ended),
    "page: run again": run_again,
}


# -- the table is walked -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("m") / "s"
    with web_matrix(folder, MATRIX.people(), count=5, times=3) as one:
        yield one


def test_each_user(scene: Scene) -> None:
    wrong = []
    for cell in MATRIX.cells:
        owner = "victim" if cell.column in OTHERS else cell.user
        found = TRIES[cell.action](scene, cell.user, owner, cell.action)
        if found != cell.expected:
            wrong.append(f"{cell.action}, {cell.column} ({cell.user}): {found}, not {cell.expected}")
    assert not wrong, "\n".join(wrong)


def test_who_is_not_known_is_refused_each_call(scene: Scene) -> None:
    for token in ("", "of nobody"):
        with scene.outsider(token) as program:
            for call in CALLS.values():
                method, path = call.split()
                answer = program.request(method, path.replace("{uuid}", scene.requests["victim"].done))
                refused = (401, 303) if not path.startswith("/v1") else (401,)  # a browser is sent to the log-in
                assert answer.status_code in refused, call
                assert answer.headers.get("location", "/login") == "/login"


def test_the_table_has_every_call() -> None:
    assert set(TRIES) == {action for action, _, _ in MATRIX.rows}
    calls = {f"{method.upper()} {path}" for path, calls in PATHS.items() for method in calls if method != "parameters"}
    actions = {
        f"{method} {route.path}"
        for route in CONSOLE
        if isinstance(route, Route)
        for method in route.methods or ()
        if method not in ("GET", "HEAD")
    }
    assert calls | actions == set(CALLS.values()) | UNNEEDED
