from urllib.request import urlopen

from redis import Redis
from rq import Queue, Retry


def send(url: str, event: str) -> None:
    urlopen(url, event.encode(), timeout=20).close()


def main(url: str) -> None:
    queue = Queue(connection=Redis())
    queue.enqueue(send, url, "paid", retry=Retry(max=5, interval=[1, 2, 4, 8, 16]))
