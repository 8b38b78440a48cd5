"""Tasks: functions with typed arguments, executed elsewhere and later. README.md in this folder shows how.

    Tasks        an app: its tasks, its services, how it reaches Titanic      app.py
    Ticket       a submitted task, and its reply; AioTicket in asyncio        ticket.py, aio_ticket.py
    Flow         tasks that follow each other, and `gather`, groups of them   flow.py
    TaskFailed   what a task has failed with                                  failures.py

`Failed` and `Retry`, which a task raises, and `current()`, the request that it works on, are in `titanic` itself.
"""

from titanic.tasks.aio_ticket import AioTicket, AioTickets
from titanic.tasks.app import Tasks
from titanic.tasks.failures import InvalidArguments, InvalidReply, TaskFailed
from titanic.tasks.flow import AioFlow, AioFlowTicket, Flow, FlowTicket, gather
from titanic.tasks.middleware import Call
from titanic.tasks.options import TaskOptions
from titanic.tasks.task import AioSubmission, AsyncTask, Submission, Task
from titanic.tasks.ticket import Ticket, Tickets

__all__ = [
    "AioFlow",
    "AioFlowTicket",
    "AioSubmission",
    "AioTicket",
    "AioTickets",
    "AsyncTask",
    "Call",
    "Flow",
    "FlowTicket",
    "InvalidArguments",
    "InvalidReply",
    "Submission",
    "Task",
    "TaskFailed",
    "TaskOptions",
    "Tasks",
    "Ticket",
    "Tickets",
    "gather",
]
