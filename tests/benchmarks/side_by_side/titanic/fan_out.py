from titanic.tasks import Tasks

app = Tasks(name="census")


@app.task
def length(word: str) -> int:
    return len(word)


def main(words: str) -> None:
    print(sum(length.map(words.split()).replies(timeout=60)))
