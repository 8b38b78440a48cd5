from huey import RedisHuey

huey = RedisHuey("shop")


@huey.task()
def fetch(name: str) -> str:
    return f"{name} fetched"


@huey.task()
def resize(name: str) -> str:
    return f"{name}, resized"


@huey.task()
def publish(name: str) -> str:
    return f"{name}, published"


def main(name: str) -> None:
    pipeline = fetch.s(name).then(resize).then(publish)
    print(huey.enqueue(pipeline).get(blocking=True, timeout=60)[-1])
