from PIL import Image
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

broker = ListQueueBroker("redis://localhost").with_result_backend(RedisAsyncResultBackend("redis://localhost"))


@broker.task
def thumbnail(path: str, width: int) -> str:
    image = Image.open(path)
    image.thumbnail((width, width))
    image.save(f"{path}.{width}.png")
    return f"{path}.{width}.png"


async def main(path: str) -> None:
    await broker.startup()
    task = await thumbnail.kiq(path, 80)
    print((await task.wait_result(timeout=60)).return_value)
    await broker.shutdown()
