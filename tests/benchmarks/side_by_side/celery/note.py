"""What is submitted to see what is lost."""

import time
from pathlib import Path

from celery import Celery

app = Celery("notes", broker="redis://localhost")


@app.task
def note(path: str, number: int) -> None:
    with Path(path).open("a") as file:
        file.write(f"begun-{number}\n")
    time.sleep(0.5 if number < 10 else 0)
    with Path(path).open("a") as file:
        file.write(f"{number}\n")


def submit(path: str, count: int) -> None:
    for number in range(count):
        note.delay(path, number)
