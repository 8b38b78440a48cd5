from pathlib import Path

from taskiq import TaskiqScheduler
from taskiq.schedule_sources import LabelScheduleSource
from taskiq_redis import ListQueueBroker

broker = ListQueueBroker("redis://localhost")
scheduler = TaskiqScheduler(broker, [LabelScheduleSource(broker)])


@broker.task(schedule=[{"cron": "* * * * *"}])
def report() -> None:
    Path("daily.txt").touch()
