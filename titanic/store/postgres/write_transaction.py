"""The write side of the engine as titanic/store/interface.py has it."""

from __future__ import annotations

from titanic.store.postgres import accept as accept_module
from titanic.store.postgres import claims, closed, lifecycle, nodes
from titanic.store.postgres import lifecycle as lifecycle_module
from titanic.store.postgres.read_transaction import PostgresReadTransaction
from titanic.store.postgres.writing import Writing


class PostgresWriteTransaction(Writing, PostgresReadTransaction):
    """All of the changes made in it, committed when the `with` block ends, or none. A process has one at a time."""

    accept = accept_module.accept
    accept_many = accept_module.accept_many
    fresh = accept_module.fresh
    forget = accept_module.forget
    finish = lifecycle.finish
    postpone = lifecycle.postpone
    promote = lifecycle.promote
    expire = lifecycle.expire
    retry = lifecycle.retry
    close = lifecycle_module.close
    trim = lifecycle_module.trim
    recap = lifecycle_module.recap
    claim = claims.claim
    release = claims.release
    count_no_more = claims.count_no_more
    under = claims.under
    settle = nodes.settle
    archive = closed.current_archive
    archivist = closed.current_archivist
    drain_nodes = nodes.drain_nodes
    register_archive = closed.register_archive
    unregister_archive = closed.unregister_archive
    acknowledge_archive = closed.acknowledge_archive
    set_service = nodes.set_service
    agree_limits = nodes.agree_limits
    change_limits = nodes.change_limits
