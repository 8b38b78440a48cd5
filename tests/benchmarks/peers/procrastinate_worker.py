"""The worker of procrastinate."""

from benchmarks.peers import tasks

if __name__ == "__main__":
    app, _ = tasks.procrastinate(in_worker=True)
    app.run_worker(concurrency=10, delete_jobs="always")
