from titanic.tasks import Tasks

app = Tasks(name="shop")


@app.task
def fetch(name: str) -> str:
    return f"{name} fetched"


@app.task
def resize(name: str) -> str:
    return f"{name}, resized"


@app.task
def publish(name: str) -> str:
    return f"{name}, published"


def main(name: str) -> None:
    print(fetch.step(name).then(resize).then(publish).submit().reply(timeout=60))
