from huey import RedisHuey

huey = RedisHuey("census")


@huey.task()
def length(word: str) -> int:
    return len(word)


def main(words: str) -> None:
    print(sum(length.map(words.split()).get(blocking=True, timeout=60)))
