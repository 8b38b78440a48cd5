from pathlib import Path

from celery import Celery
from celery.schedules import crontab

app = Celery("reports", broker="redis://localhost")
app.conf.beat_schedule = {"daily": {"task": "cron.report", "schedule": crontab()}}


@app.task
def report() -> None:
    Path("daily.txt").touch()
