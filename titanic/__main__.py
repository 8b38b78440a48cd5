"""`python -m titanic` is the `titanic` command."""

from titanic.entry import main

main()
