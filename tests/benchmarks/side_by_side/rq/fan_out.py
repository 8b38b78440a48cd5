from redis import Redis
from rq import Queue


def length(word: str) -> int:
    return len(word)


def main(words: str) -> None:
    queue = Queue(connection=Redis())
    jobs = queue.enqueue_many([Queue.prepare_data(length, (word,)) for word in words.split()])
    print(sum(job.latest_result(timeout=60).return_value for job in jobs))
