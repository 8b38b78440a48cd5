from celery import Celery
from PIL import Image

app = Celery("pictures", broker="redis://localhost", backend="redis://localhost")


@app.task
def thumbnail(path: str, width: int) -> str:
    image = Image.open(path)
    image.thumbnail((width, width))
    image.save(f"{path}.{width}.png")
    return f"{path}.{width}.png"


def main(path: str) -> None:
    print(thumbnail.delay(path, 80).get(timeout=60))
