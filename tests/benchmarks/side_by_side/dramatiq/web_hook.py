from urllib.request import urlopen

import dramatiq
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker())


@dramatiq.actor(max_retries=5, min_backoff=1000)
def send(url: str, event: str) -> None:
    urlopen(url, event.encode(), timeout=20).close()


def main(url: str) -> None:
    send.send(url, "paid")
