"""The read side of the engine as titanic/store/interface.py has it."""

from __future__ import annotations

from titanic.store.postgres import closed as closed_module
from titanic.store.postgres import nodes as nodes_module
from titanic.store.postgres import queries
from titanic.store.postgres.transaction import Looking


class PostgresReadTransaction(Looking):
    """The store as it was at the first thing that was asked of it. What is deleted meanwhile keeps its room: keep it
    short."""

    state = queries.state
    request = queries.request
    reply = queries.reply
    describe = queries.describe
    owner = queries.owner
    holder = queries.holder
    next_ready = queries.next_ready
    next_due = queries.next_due
    waiting = queries.waiting
    oldest = queries.oldest
    queues = queries.queues
    select = queries.select
    list = queries.list_requests
    request_ids = queries.request_ids
    unended = queries.unended
    list_running = queries.list_running
    running = nodes_module.running
    recalled = nodes_module.recalled
    look_around = nodes_module.look_around
    load = queries.load
    owner_load = queries.owner_load
    counts = queries.counts
    full = queries.full
    room_left = queries.room_left
    disk_full = queries.disk_full
    identity = queries.identity
    closed = closed_module.closed
    closed_range = closed_module.closed_range
    closed_bulk = closed_module.closed_bulk
    cut_closed = closed_module.cut_closed
    archive = closed_module.archive
    archivist = closed_module.archivist
    service_settings = nodes_module.settings
    service_limits = nodes_module.service_limits
    nodes = nodes_module.nodes
    nodes_and_claims = nodes_module.nodes_and_claims
