from urllib.request import urlopen

from titanic.tasks import Tasks

app = Tasks(name="hooks")


@app.task(max_attempts=6)
def send(url: str, event: bytes) -> None:
    urlopen(url, event, timeout=20).close()


def main(url: str) -> None:
    send.submit(url, b"paid")
