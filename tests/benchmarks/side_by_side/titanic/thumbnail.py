from PIL import Image

from titanic.tasks import Tasks

app = Tasks(name="pictures")


@app.task
def thumbnail(path: str, width: int) -> str:
    image = Image.open(path)
    image.thumbnail((width, width))
    image.save(f"{path}.{width}.png")
    return f"{path}.{width}.png"


def main(path: str) -> None:
    print(thumbnail.submit(path, 80).reply(timeout=60))
