"""What the worker of celery imports."""

from benchmarks.peers import tasks

app, task = tasks.celery()
