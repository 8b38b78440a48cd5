"""Handlers: the threads that run them, their results, their exceptions as error replies, and the delivery at hand."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from pathlib import Path
from queue import SimpleQueue
from traceback import format_exception
from typing import Any, ClassVar, Protocol

from broker.core.mdp import Action, Frames, error_body
from broker.core.worker import Job
from broker.errors import RemoteError
from broker.io.loop import Call
from broker.io.sockets import MOST_BODY_FRAMES

log = logging.getLogger(__name__)
worker_log = logging.getLogger("broker.worker")

Frame = bytes | bytearray | memoryview | str
Reply = Frame | Iterable[Frame] | None
"""What a handler may return or yield: one frame, several, or none, which becomes an empty one. Text is sent as
UTF-8."""
Handler = Callable[[Frames], Reply | Generator[Reply, None, Reply]]
"""A function of a request's frames. It returns the reply, or is a generator of its parts."""

SendPart = Callable[[Frames], object]
"""Gets each part of a reply."""


class HandlerThreads:
    """Up to `most` threads, started on demand.

    `concurrent.futures` does the same, but makes a future with its locks for each call: a busy worker executed 11,000
    to 17,000 requests a second with it, and 18,000 to 26,000 with this. It also waits for its threads when the program
    ends, and some may run for ever.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads: set[int] = set()
        self.started = 0
        """Threads that are running."""
        self._busy = 0
        self._short = False
        self._calls: SimpleQueue[Call | None] = SimpleQueue()

    def call(self, function: Action, *args: Any) -> bool:
        """Call a function in one of the threads. Only one thread may use this, and it calls `done` for each call.

        Return False if there is no thread and none can be started: the function is not called then. If there are busy
        ones, the call waits for one.
        """
        if self._busy >= self.started < self._most:
            self._start()
        if not self.started:
            return False
        self._calls.put((function, args))
        self._busy += 1
        return True

    def done(self) -> None:
        """Note that one of the calls is done: its thread is free, or will be at once."""
        self._busy -= 1

    def end(self) -> None:
        """End the threads once they have nothing left to do, without waiting for that."""
        for _ in range(self.started):
            self._calls.put(None)

    def __contains__(self, thread: int) -> bool:
        """Whether a thread is one of these, by its `threading.get_ident()`."""
        return thread in self._threads

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name=f"handler {self.started + 1}", daemon=True).start()
        except (RuntimeError, MemoryError) as error:  # the system has no more; the next call tries again
            if not self._short:
                log.warning("cannot start thread %d for a handler: %s", self.started + 1, error)
            self._short = True
        else:
            self.started += 1
            self._short = False

    def _run(self) -> None:
        self._threads.add(threading.get_ident())
        while (call := self._calls.get()) is not None:
            function, args = call
            try:
                copy_context().run(function, *args)  # what it sets is not there for the next one
            except BaseException:  # a thread that ended would never be replaced
                with suppress(BaseException):
                    log.exception("a bug in this program, in a handler thread")
            del call, function, args  # a body is not to be kept until the next one comes
        self._threads.discard(threading.get_ident())


def execute(handler: Handler, body: Frames, part: SendPart) -> Frames:
    """Call a handler. `part` gets each part of the reply that it yields; return the last one, or the whole."""
    result: Any = handler(body)
    while isinstance(result, Generator):
        try:
            value = next(result)
        except StopIteration as end:
            result = end.value
        else:
            part(as_frames(value))
    return as_frames(result)


MOST_TEXT = 4096
"""Characters of an exception's text in the error reply."""

MOST_TRACEBACK = 4096
"""Bytes of a traceback in the error reply."""

TRACEBACK = b"Traceback (most recent call last):\n"
"""How a traceback begins."""

_HERE = f"{Path(__file__).parent}/"
"""Frames of this package, which lead to a handler."""

_NAMELESS = error_body(500, "the handler failed")


class TooLarge(Exception):
    """A reply that the broker would not accept; the text says what to do."""


class Measure:
    """Checks what may be sent for one request.

    A broker ends the connection of a worker that sends more than it accepts, without an answer, and gives the request
    to the next worker: so the size is checked here.
    """

    def __init__(self, most: int, *, joined: bool) -> None:
        """`most`: bytes in one message; `joined`: whether all parts go out in one, as in MDP 0.1."""
        self._most = most
        self._joined = joined
        self._frames = self._bytes = 0

    def part(self, frames: Frames) -> Frames:
        """Check a part of the reply and return it. Raises TooLarge."""
        self._check(frames, "all parts of the reply have" if self._joined else "a part of the reply has")
        return frames

    def last(self, frames: Frames) -> Frames:
        """Check the reply, or its last part, and return it. Raises TooLarge."""
        self._check(frames, "the reply has")
        return frames

    def _check(self, frames: Frames, what: str) -> None:
        count, size = len(frames), sum(map(len, frames))
        if self._joined:
            count, size = self._frames, self._bytes = self._frames + count, self._bytes + size
        if count > MOST_BODY_FRAMES:
            raise TooLarge(f"{what} {count} frames; at most {MOST_BODY_FRAMES} can be sent at once; {self._advice()}")
        if size > self._most:
            advice = f"{self._advice()}, or raise max_reply of the worker and max_body of its broker"
            raise TooLarge(f"{what} {size} bytes; this worker sends at most {self._most} at once; {advice}")

    def _advice(self) -> str:
        return "send less (MDP 0.1 has no parts)" if self._joined else "send it in (smaller) parts"


def as_frames(value: Any) -> Frames:
    """Convert a handler's result to body frames, at least one: None and an empty list become an empty frame."""
    if value is None:
        return [b""]
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return [_frame(value)]
    if isinstance(value, Iterable) and not isinstance(value, (Mapping, Set)):
        return [_frame(frame) for frame in value] or [b""]
    raise TypeError(f"a reply must be bytes, str, a list of these or None, not {type(value).__name__}")


def error_frames(error: RemoteError) -> Frames:
    """Make the error reply that a handler has chosen."""
    return error_body(error.status, error.text, *(as_frames(error.detail) if error.detail else ()))


def error_reply(error: BaseException, job: Job, most: int) -> Frames:
    """Make and log the error reply for an exception of a handler, of `most` bytes. It never raises: without a reply the
    worker would never be free again."""
    if isinstance(error, RemoteError):
        try:
            # Without the parts before it, whatever the version.
            return Measure(most, joined=False).last(error_frames(error))
        except BaseException as fault:
            error = fault
    if isinstance(error, TooLarge):
        _complain(job, logging.WARNING, "a reply of %s was not sent: %s (%s)", error, job)
        return error_body(413, str(error))
    # SystemExit too: it would end the thread of the handler only, and silently.
    _complain(job, logging.ERROR, "handler of %s failed (%s)", job, error=error)
    return failure(error, traced=bool(job.context))


def _complain(job: Job, level: int, text: str, *facts: object, error: BaseException | None = None) -> None:
    # Out of memory, or an error in a log handler: the reply is sent all the same.
    with suppress(BaseException):
        worker_log.log(level, text, job.service.decode(), *facts, exc_info=error)


def failure(error: BaseException, *, traced: bool = False) -> Frames:
    """Make the error reply for an exception of a handler. It never raises, whatever the exception's own code does.
    `traced`: include the end of the traceback, for a queue to keep."""
    try:
        text = f"{type(error).__name__}: {error}"[:MOST_TEXT]
        return error_body(500, text, *(_traceback(error) if traced else ()))
    except BaseException:
        try:
            return error_body(500, type(error).__name__)
        except BaseException:
            return _NAMELESS


def _traceback(error: BaseException) -> Frames:
    """Format the traceback of an exception from the handler on; a long one without its beginning. Empty if there is
    none."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    if trace is None:
        return []
    with suppress(BaseException):  # formatting an exception runs its code
        lines = format_exception(type(error), error, trace)
        said = "".join(lines).encode(errors="replace")
        if len(said) > MOST_TRACEBACK:
            said = TRACEBACK + b"  ...\n" + said[len(said) - MOST_TRACEBACK + 50 :].partition(b"\n")[2]
        return [said]
    return []


def _frame(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a frame of a reply must be bytes or str, not {type(value).__name__}")


MOST_PROGRESS = 1024
"""Bytes of a progress message."""


class ProgressReporter(Protocol):
    """Sends a handler's progress to its broker."""

    def progress(self, delivery: Delivery) -> None:
        """Send the last message (`take_progress`) soon. Any thread may call this."""


class DeliveryObserver(Protocol):
    """Observes what the handlers of this process do."""

    def executing(self, delivery: Delivery) -> AbstractContextManager[object]:
        """A context for the execution of a delivery, which may fail in it."""


_UNOBSERVED = nullcontext()


class Delivery:
    """One delivery of a request to a handler, in a context variable while the handler runs. Any thread may call its
    methods.

    A queue may give a request a context. It is not interpreted here. It comes with the delivery
    (`Job.context`). A handler can report its progress, and learns of a cancellation.
    """

    observer: ClassVar[DeliveryObserver | None] = None
    """None: nothing is observed."""
    is_cancelled = False
    """Whether the request was closed, or has expired: the reply is not wanted."""
    at_limit = False
    """Whether the broker said that it has exceeded its limit."""
    kills = False
    """Whether the broker said that its process is to be ended."""
    known: object = None
    """What a program has decoded from the context, so that it does so once."""
    _news: bytes | None = None

    def __init__(
        self, context: bytes, reporter: ProgressReporter | None = None, number: int = 0, service: bytes = b""
    ) -> None:
        """`reporter`: None: progress is dropped. `number`: the worker's number of the job."""
        self.service = service
        self.context = context
        """What the queue says about the request, a JSON object; empty: nothing."""
        self.number = number
        self._reporter = reporter
        self._callbacks: list[tuple[Callable[[], object], bool]] = []

    def observed(self) -> AbstractContextManager[object]:
        """The context in which a worker executes this."""
        return _UNOBSERVED if self.observer is None else self.observer.executing(self)

    def cancel(self) -> None:
        """Cancel the delivery."""
        self.is_cancelled = True
        self._call_back()

    def on_cancel(self, function: Callable[[], object], *, again: bool = False) -> None:
        """Call a function when this is cancelled, at once if it is already. It is called in the worker's thread and
        must not block. `again`: call it at each further cancellation, too: the reason may be another one."""
        self._callbacks.append((function, again))
        if self.is_cancelled:
            self._call_back()

    def progress(self, text: bytes) -> None:
        """Report progress to the broker. A newer message replaces one that was not sent yet."""
        if self._reporter is None:
            return
        waits, self._news = self._news is not None, text[:MOST_PROGRESS]
        if not waits:
            self._reporter.progress(self)

    def take_progress(self) -> bytes | None:
        """Return the last progress message; None: nothing new since the last call."""
        text, self._news = self._news, None
        return text

    def _call_back(self) -> None:
        kept = []
        while self._callbacks:
            try:
                function, again = self._callbacks.pop()
            except IndexError:  # another thread was quicker
                break
            if again:
                kept.append((function, again))
            with suppress(Exception):  # the caller's loop may be closed; the worker continues
                function()
        self._callbacks += kept


DELIVERY: ContextVar[Delivery | None] = ContextVar("DELIVERY", default=None)
"""The delivery handled in this context; None: no handler of a worker runs here."""
