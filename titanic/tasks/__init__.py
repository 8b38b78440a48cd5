"""Tasks: run typed Python functions as background tasks. README.md in this folder shows how.

    Tasks        an app: its tasks, its services, how it reaches Titanic       app.py
    Task         a function that workers execute                               task.py
    Ticket       a submitted task and its reply; AioTicket for asyncio         ticket.py
    Flow         tasks that follow each other, and `gather`, groups of them    flow.py
    TaskFailed   why a task failed                                             task_errors.py

`Failed` and `Retry`, which a task raises, and `current()`, its request, are in `titanic` itself.
"""

from titanic.tasks.app import Tasks
from titanic.tasks.flow import AioFlow, AioFlowTicket, Flow, FlowTicket, gather
from titanic.tasks.task import AioSubmission, AsyncTask, Call, Submission, Task, TaskOptions
from titanic.tasks.task_errors import FailedRequest, InvalidArguments, InvalidReply, TaskFailed
from titanic.tasks.ticket import AioTicket, AioTickets, Ticket, Tickets

__all__ = [
    "AioFlow",
    "AioFlowTicket",
    "AioSubmission",
    "AioTicket",
    "AioTickets",
    "AsyncTask",
    "Call",
    "FailedRequest",
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
