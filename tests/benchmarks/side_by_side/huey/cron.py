from pathlib import Path

from huey import RedisHuey, crontab

huey = RedisHuey("reports")


@huey.periodic_task(crontab())
def report() -> None:
    Path("daily.txt").touch()
