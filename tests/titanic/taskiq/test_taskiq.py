"""Apps of taskiq on Titanic: with its receiver in this process, and with processes of `taskiq worker`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest
from support.coroutines import in_loop
from support.processes import Process
from support.waiting import PATIENCE, until
from taskiq import BrokerMessage, Context, SimpleRetryMiddleware, TaskiqDepends, TaskiqResult
from taskiq.depends.progress_tracker import ProgressTracker, TaskState
from taskiq.exceptions import ResultIsReadyError, SendTaskError
from taskiq.receiver import Receiver

from titanic import Client, RequestFailed, Server
from titanic import taskiq as taskiq_room
from titanic.errors import CallerError
from titanic.taskiq import TitanicBroker, TitanicResultBackend

pytestmark = pytest.mark.settings(max_attempts=2, unready_timeout=0.1)

APP = """
import os
import time
from pathlib import Path

from titanic.taskiq import TitanicBroker

broker = TitanicBroker(os.environ["ENDPOINT"], jobs=2)


@broker.task(task_name="hold")
def hold(folder: str, name: str) -> int:
    Path(folder, f"{name}.{os.getpid()}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return os.getpid()
"""


def results(broker: TitanicBroker) -> TitanicResultBackend[object]:
    assert isinstance(broker.result_backend, TitanicResultBackend)
    return broker.result_backend


@asynccontextmanager
async def listening(broker: TitanicBroker) -> AsyncIterator[None]:
    """A worker of taskiq in this loop."""
    finish = asyncio.Event()
    receiver = asyncio.create_task(Receiver(broker, max_async_tasks=10, run_startup=False).listen(finish))
    try:
        yield
    finally:
        finish.set()
        await receiver
        await broker.shutdown()


@in_loop
async def test_a_life(server: Server, client: Client) -> None:
    broker = TitanicBroker(server.endpoints[0], timeout=30)
    runs = 0

    @broker.task(priority=7)
    async def divide(a: int, b: int) -> float:
        nonlocal runs
        runs += 1
        return a / b

    async with listening(broker):
        kicked = await divide.kiq(7, 2)
        assert (await kicked.wait_result(0.01, PATIENCE)).return_value == 3.5
        row = client.show(await results(broker).uuid(kicked.task_id))
        assert (row["service"], row["state"], row["priority"]) == ("taskiq", "done", 7)
        again = await divide.kicker().with_task_id(kicked.task_id).kiq(1, 1)  # the same id is the same task
        assert (await again.get_result()).return_value == 3.5
        result = await (await divide.kiq(1, 0)).wait_result(0.01, PATIENCE)
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            result.raise_for_error()
        assert runs == 2
        client.close(row["uuid"])
        with pytest.raises(ResultIsReadyError) as caught:
            await kicked.is_ready()
        assert "was closed" in str(caught.value.__cause__)
        assert not await results(broker).is_result_ready("never sent")
        with pytest.raises(SendTaskError) as refused:
            await divide.kicker().with_labels(ttl="soon").kiq(1, 1)
        assert "the label ttl is 'soon'; it must be a number" in str(refused.value.__cause__)
        with pytest.raises(SendTaskError) as refused:
            await divide.kicker().with_labels(on_limit="stay").kiq(1, 1)
        assert "on_limit must be leave" in str(refused.value.__cause__)
        never = await divide.kicker().with_labels(keep="never").kiq(6, 2)
        assert (await never.wait_result(0.01, PATIENCE)).return_value == 3.0


@in_loop
async def test_a_unique_task_finds_the_one_before(server: Server, client: Client) -> None:
    broker = TitanicBroker(server.endpoints[0], timeout=30)

    @broker.task(unique="all", unique_for=100)
    async def count(number: int) -> int:
        return number

    first, second = await count.kiq(1), await count.kiq(2)
    uuids = {await results(broker).uuid(kicked.task_id) for kicked in (first, second)}
    assert [row["uuid"] for row in client.list()[0]] == [*uuids]
    async with listening(broker):
        for kicked in (second, first):
            assert (await kicked.wait_result(0.01, PATIENCE)).return_value == 1


@in_loop
async def test_a_unique_task_that_is_sent_again_does_not_find_itself(server: Server) -> None:
    broker = TitanicBroker(server.endpoints[0], timeout=30)
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))
    runs = []

    @broker.task(retry_on_error=True, unique="all", unique_for=100)
    async def second() -> int:
        runs.append(1)
        if len(runs) < 2:
            raise ValueError("again")
        return len(runs)

    kicked = [await second.kiq(), await second.kiq()]
    async with listening(broker):
        for one in kicked:
            assert (await one.wait_result(0.01, PATIENCE)).return_value == 2


@in_loop
async def test_what_taskiq_sends_again(server: Server, client: Client) -> None:
    """By its middleware and by `requeue`: under the same task id, and it is executed."""
    broker = TitanicBroker(server.endpoints[0], timeout=30, keep_results=False)
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))
    runs = [0, 0]

    @broker.task(retry_on_error=True)
    async def third() -> int:
        runs[0] += 1
        if runs[0] < 3:
            raise ValueError("again")
        return runs[0]

    @broker.task
    async def second(context: Annotated[Context, TaskiqDepends()]) -> int:
        runs[1] += 1
        if runs[1] < 2:
            await context.requeue()
        return runs[1]

    async with listening(broker):
        for task, number in ((third, 3), (second, 2)):
            kicked = await task.kiq()
            assert (await kicked.wait_result(0.01, PATIENCE)).return_value == number
    assert client.list()[0] == []  # they were closed with their results


@in_loop
async def test_progress(server: Server, client: Client) -> None:
    broker = TitanicBroker(server.endpoints[0], timeout=30)
    go = asyncio.Event()

    @broker.task
    async def work(tracker: Annotated[ProgressTracker[int], TaskiqDepends()]) -> None:
        await tracker.set_progress(TaskState.STARTED, 40)
        await go.wait()
        with pytest.raises(CallerError, match="use at most 900"):
            await tracker.set_progress("x" * 1000)

    reader = TitanicBroker(server.endpoints[0], timeout=30)  # another process
    async with listening(broker):
        kicked = await work.kiq()
        async with asyncio.timeout(PATIENCE):
            while (progress := await results(reader).get_progress(kicked.task_id)) is None:
                await asyncio.sleep(0.01)
        assert (progress.state, progress.meta) == ("STARTED", 40)
        go.set()
        await kicked.wait_result(0.01, PATIENCE)
        assert await results(reader).get_progress(kicked.task_id) == progress  # it is kept with the result
    await reader.shutdown()


@in_loop
async def test_a_task_that_blocks_its_loop(server: Server, client: Client) -> None:
    """Its worker goes on speaking to the server: else the server would take it for dead, and others for able."""
    broker = TitanicBroker(server.endpoints[0], timeout=30)

    @broker.task
    async def block(tracker: Annotated[ProgressTracker[int], TaskiqDepends()]) -> object:
        await tracker.set_progress(TaskState.STARTED, 40)
        (row,) = client.list()[0]
        return until(lambda: client.show(row["uuid"]).get("progress"))

    async with listening(broker):
        result = await (await block.kiq()).wait_result(0.01, PATIENCE)
        assert not result.is_err, result.error
        assert client.list()[0][0]["attempts"] == 1


@in_loop
async def test_what_has_no_result(server: Server, client: Client) -> None:
    broker = TitanicBroker(server.endpoints[0], timeout=30)

    @broker.task
    async def odd() -> object:
        return object()

    @broker.task(ack_type="when_received")
    async def early() -> int:
        return 1

    async with listening(broker):
        result = await (await odd.kiq()).wait_result(0.01, PATIENCE)
        assert "the result cannot be sent" in str(result.error)
        unknown = BrokerMessage(
            task_id="u", task_name="absent", labels={}, message=b'{"task_id":"u","task_name":"absent",'
            b'"labels":{},"args":[],"kwargs":{}}'
        )  # fmt: skip
        await broker.kick(unknown)
        async with asyncio.timeout(PATIENCE):
            while not await results(broker).is_result_ready("u"):
                await asyncio.sleep(0.01)
        failed = (await results(broker).get_result("u")).error
        assert isinstance(failed, RequestFailed)
        assert "this worker has no task 'absent'" in str(failed)
        with pytest.raises(RequestFailed, match="this is not a taskiq message"):
            await asyncio.to_thread(client.wait, client.submit("taskiq", b"?"), PATIENCE)
        kicked = await early.kiq()
        await asyncio.to_thread(client.wait, await results(broker).uuid(kicked.task_id), PATIENCE)
        assert not await kicked.is_ready()  # it was acknowledged before it had one
        with pytest.raises(CallerError, match="leave ack_type at when_saved"):
            await results(broker).set_result("x", TaskiqResult(is_err=False, return_value=1, execution_time=0))
    with pytest.raises(CallerError, match="the task's id is its key"):
        TitanicBroker(options={"key": "k"})


@in_loop
async def test_the_readme(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(taskiq_room.__file__).with_name("README.md")
    (block,) = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    module = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    exec(compile(block.replace("tcp://127.0.0.1:5555", server.endpoints[0]), str(readme), "exec"), vars(module))
    async with listening(module.broker):
        await module.main()
        assert capsys.readouterr().out == "120-a.png\n"


def test_a_worker_that_is_killed(server: Server, client: Client, tmp_path: Path) -> None:
    """Its task goes to another one; and what waited there, too. One that is stopped finishes first."""
    (tmp_path / "shop.py").write_text(APP)
    environment = {"ENDPOINT": server.endpoints[0]}
    command = ("-m", "taskiq", "worker", "shop:broker", "--workers", "1", "--app-dir", tmp_path)

    def begun(name: str) -> list[int]:
        return [int(path.suffix[1:]) for path in tmp_path.glob(f"{name}.*") if path.suffix[1:].isdigit()]

    async def kick(*names: str) -> list[str]:
        broker = TitanicBroker(server.endpoints[0], timeout=30)

        @broker.task(task_name="hold")
        def hold(folder: str, name: str) -> int:
            raise AssertionError("here is no worker")

        ids = [(await hold.kiq(str(tmp_path), name)).task_id for name in names]
        await broker.shutdown()
        return ids

    async def outcome(task_id: str) -> object:
        broker = TitanicBroker(server.endpoints[0], timeout=30)
        await asyncio.to_thread(client.wait, await results(broker).uuid(task_id), PATIENCE)
        result = await results(broker).get_result(task_id)
        await broker.shutdown()
        return result.return_value

    with Process(*command, output=tmp_path / "first", **environment) as first:
        ids = asyncio.run(kick("a", "b"))
        (child,) = until(lambda: set(begun("a") + begun("b")) if begun("a") and begun("b") else set())
        first.kill()  # it would replace the child
        os.kill(child, signal.SIGKILL)
    with Process(*command, output=tmp_path / "second", **environment) as second:
        (other,) = until(lambda: set(begun("a") + begun("b")) - {child})  # either may have killed it: each runs alone
        second.signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        done = ids[0] if other in begun("a") else ids[1]
        assert asyncio.run(outcome(done)) == other
        until(lambda: not second.running)  # another SIGTERM would end it while it ends
        assert second.terminate() == 0
    with Process(*command, output=tmp_path / "third", **environment):
        assert child not in {asyncio.run(outcome(one)) for one in ids}, (
            "what it had not begun is executed by a later one"
        )
