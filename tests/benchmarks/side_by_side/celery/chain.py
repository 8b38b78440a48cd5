from celery import Celery, chain

app = Celery("shop", broker="redis://localhost", backend="redis://localhost")


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
    print(chain(fetch.s(name), resize.s(), publish.s())().get(timeout=60))
