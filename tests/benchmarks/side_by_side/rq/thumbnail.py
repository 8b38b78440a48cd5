from PIL import Image
from redis import Redis
from rq import Queue


def thumbnail(path: str, width: int) -> str:
    image = Image.open(path)
    image.thumbnail((width, width))
    image.save(f"{path}.{width}.png")
    return f"{path}.{width}.png"


def main(path: str) -> None:
    job = Queue(connection=Redis()).enqueue(thumbnail, path, 80)
    print(job.latest_result(timeout=60).return_value)
