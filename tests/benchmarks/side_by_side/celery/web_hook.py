from urllib.request import urlopen

from celery import Celery

app = Celery("hooks", broker="redis://localhost")


@app.task(autoretry_for=(Exception,), retry_backoff=True, max_retries=5)
def send(url: str, event: str) -> None:
    urlopen(url, event.encode(), timeout=20).close()


def main(url: str) -> None:
    send.delay(url, "paid")
