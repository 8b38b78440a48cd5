"""`python -m titanic_data`: the command `titanic-data`."""

from titanic_data.cli import main

main(prog_name="titanic-data")
