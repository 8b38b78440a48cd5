from huey import RedisHuey
from PIL import Image

huey = RedisHuey("pictures")


@huey.task()
def thumbnail(path: str, width: int) -> str:
    image = Image.open(path)
    image.thumbnail((width, width))
    image.save(f"{path}.{width}.png")
    return f"{path}.{width}.png"


def main(path: str) -> None:
    print(thumbnail(path, 80).get(blocking=True, timeout=60))
