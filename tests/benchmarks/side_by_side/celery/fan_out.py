from celery import Celery, group

app = Celery("census", broker="redis://localhost", backend="redis://localhost")


@app.task
def length(word: str) -> int:
    return len(word)


def main(words: str) -> None:
    print(sum(group(length.s(word) for word in words.split())().get(timeout=60)))
