"""Looking after a store in PostgreSQL."""

from titanic.store.postgres.tools.check import Problem, check

__all__ = ["Problem", "check"]
