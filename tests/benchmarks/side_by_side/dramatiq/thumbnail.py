import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from PIL import Image

broker = RedisBroker()
broker.add_middleware(Results(backend=RedisBackend()))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def thumbnail(path: str, width: int) -> str:
    image = Image.open(path)
    image.thumbnail((width, width))
    image.save(f"{path}.{width}.png")
    return f"{path}.{width}.png"


def main(path: str) -> None:
    print(thumbnail.send(path, 80).get_result(block=True, timeout=60_000))
