import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

broker = RedisBroker()
broker.add_middleware(Results(backend=RedisBackend()))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def fetch(name: str) -> str:
    return f"{name} fetched"


@dramatiq.actor(store_results=True)
def resize(name: str) -> str:
    return f"{name}, resized"


@dramatiq.actor(store_results=True)
def publish(name: str) -> str:
    return f"{name}, published"


def main(name: str) -> None:
    pipeline = fetch.message(name) | resize.message() | publish.message()
    print(pipeline.run().get_result(block=True, timeout=60_000))
