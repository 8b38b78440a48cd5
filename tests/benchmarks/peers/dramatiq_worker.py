"""What the worker of dramatiq imports."""

from benchmarks.peers import tasks

task = tasks.dramatiq()
