"""The write side of the engine as titanic/store/interface.py has it."""

from __future__ import annotations

from titanic.store.postgres import service_rows
from titanic.store.postgres.closed import archive as archiving
from titanic.store.postgres.nodes import node_rows, sharing
from titanic.store.postgres.read_transaction import PostgresReadTransaction
from titanic.store.postgres.requests import accept as accepting
from titanic.store.postgres.requests import claims, idempotency_keys, lifecycle, timers
from titanic.store.postgres.requests import close as closing
from titanic.store.postgres.requests import recap as recapping
from titanic.store.postgres.writing import Writing


class PostgresWriteTransaction(Writing, PostgresReadTransaction):
    """All of the changes made in it, committed when the `with` block ends, or none. A process has one at a time."""

    accept = accepting.accept
    accept_many = accepting.accept_many
    fresh = accepting.fresh
    forget = idempotency_keys.forget
    finish = lifecycle.finish
    postpone = lifecycle.postpone
    promote = lifecycle.promote
    expire = lifecycle.expire
    retry = lifecycle.retry
    close = closing.close
    trim = timers.trim
    recap = recapping.recap
    claim = claims.claim
    release = claims.release
    count_no_more = claims.count_no_more
    under = claims.under
    settle = sharing.settle
    archive = archiving.current_archive
    archivist = archiving.current_archivist
    drain_nodes = node_rows.drain_nodes
    register_archive = archiving.register_archive
    unregister_archive = archiving.unregister_archive
    acknowledge_archive = archiving.acknowledge_archive
    set_service = service_rows.set_service
    agree_limits = service_rows.agree_limits
    change_limits = service_rows.change_limits
