from taskiq import gather
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

broker = ListQueueBroker("redis://localhost").with_result_backend(RedisAsyncResultBackend("redis://localhost"))


@broker.task
def length(word: str) -> int:
    return len(word)


async def main(words: str) -> None:
    await broker.startup()
    results = await gather(*[await length.kiq(word) for word in words.split()], timeout=60)
    print(sum(result.return_value for result in results))
    await broker.shutdown()
