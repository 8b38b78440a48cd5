from pathlib import Path

from titanic.tasks import Tasks

app = Tasks(name="reports")


@app.cron("* * * * *")
def report() -> None:
    Path("daily.txt").touch()
