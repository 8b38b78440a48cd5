import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

broker = RedisBroker()
broker.add_middleware(Results(backend=RedisBackend()))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def length(word: str) -> int:
    return len(word)


def main(words: str) -> None:
    group = dramatiq.group(length.message(word) for word in words.split())
    print(sum(group.run().get_results(block=True, timeout=60_000)))
