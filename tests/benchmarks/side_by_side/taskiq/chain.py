from taskiq_pipelines import Pipeline, PipelineMiddleware
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

broker = ListQueueBroker("redis://localhost").with_result_backend(RedisAsyncResultBackend("redis://localhost"))
broker.add_middlewares(PipelineMiddleware())


@broker.task
def fetch(name: str) -> str:
    return f"{name} fetched"


@broker.task
def resize(name: str) -> str:
    return f"{name}, resized"


@broker.task
def publish(name: str) -> str:
    return f"{name}, published"


async def main(name: str) -> None:
    await broker.startup()
    task = await Pipeline(broker, fetch).call_next(resize).call_next(publish).kiq(name)
    print((await task.wait_result(timeout=60)).return_value)
    await broker.shutdown()
