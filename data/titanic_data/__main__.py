"""`python -m titanic_data`: the command `titanic-data`."""

from titanic.entry import start


def run() -> None:
    """The command `titanic-data`."""
    start("titanic_data.cli", "titanic-data")


if __name__ == "__main__":
    run()
