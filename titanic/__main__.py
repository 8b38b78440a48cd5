"""`python -m titanic` is the `titanic` command."""

from titanic.cli import main

main()
