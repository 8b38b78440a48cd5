from urllib.request import urlopen

from taskiq import SimpleRetryMiddleware
from taskiq_redis import ListQueueBroker

broker = ListQueueBroker("redis://localhost").with_middlewares(SimpleRetryMiddleware())


@broker.task(retry_on_error=True, max_retries=6)
def send(url: str, event: str) -> None:
    urlopen(url, event.encode(), timeout=20).close()


async def main(url: str) -> None:
    await broker.startup()
    await send.kiq(url, "paid")
    await broker.shutdown()
