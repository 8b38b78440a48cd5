"""What the worker of huey imports."""

from benchmarks.peers import tasks

queue, task = tasks.huey()
