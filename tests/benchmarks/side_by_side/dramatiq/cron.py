from pathlib import Path

import dramatiq
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.cron import CronTrigger
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker())


@dramatiq.actor
def report() -> None:
    Path("daily.txt").touch()


def main() -> None:
    scheduler = BlockingScheduler()
    scheduler.add_job(report.send, CronTrigger.from_crontab("* * * * *"))
    scheduler.start()
