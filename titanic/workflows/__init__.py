"""Flows: tasks that follow each other, and groups of them, on stored requests and their keys alone. README.md in this
folder shows how; what users call is in `titanic.tasks`: `Task.step`, `gather`, `Flow`.

    plan.py      what is stored of a flow
    steps.py     what a worker does around a task that is a step of a flow
    flow_service.py   what a worker does for the flow itself: begin, look, end
    sweeping.py  closing what is left of a flow
"""
