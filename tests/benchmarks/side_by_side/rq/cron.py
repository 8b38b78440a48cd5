from pathlib import Path


def report() -> None:
    Path("daily.txt").touch()
