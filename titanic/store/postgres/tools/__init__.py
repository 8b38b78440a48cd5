"""Looking after a store in PostgreSQL."""

from titanic.store.postgres.tools.check import Problem, check, repair

__all__ = ["Problem", "check", "repair"]
