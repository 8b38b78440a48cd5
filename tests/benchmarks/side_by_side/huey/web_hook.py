from urllib.request import urlopen

from huey import RedisHuey

huey = RedisHuey("hooks")


@huey.task(retries=5, retry_delay=1, retry_backoff=2)
def send(url: str, event: str) -> None:
    urlopen(url, event.encode(), timeout=20).close()


def main(url: str) -> None:
    send(url, "paid")
