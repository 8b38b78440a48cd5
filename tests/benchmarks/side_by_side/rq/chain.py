from redis import Redis
from rq import Queue, get_current_job


def before() -> str:
    return get_current_job().dependency.return_value()


def fetch(name: str) -> str:
    return f"{name} fetched"


def resize() -> str:
    return f"{before()}, resized"


def publish() -> str:
    return f"{before()}, published"


def main(name: str) -> None:
    queue = Queue(connection=Redis())
    fetched = queue.enqueue(fetch, name)
    resized = queue.enqueue(resize, depends_on=fetched)
    published = queue.enqueue(publish, depends_on=resized)
    print(published.latest_result(timeout=60).return_value)
