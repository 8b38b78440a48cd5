"""The read side of the engine as titanic/store/interface.py has it."""

from __future__ import annotations

from titanic.store.postgres import closed as closed_module
from titanic.store.postgres import service_rows
from titanic.store.postgres.nodes import node_rows, sharing
from titanic.store.postgres.reading import listing, queue_reads, request_reads, totals
from titanic.store.postgres.transaction import Looking


class PostgresReadTransaction(Looking):
    """The store as it was at the first thing that was asked of it. What is deleted meanwhile keeps its room: keep it
    short."""

    state = request_reads.state
    request = request_reads.request
    reply = request_reads.reply
    describe = request_reads.describe
    owner = request_reads.owner
    holder = request_reads.holder
    next_ready = queue_reads.next_ready
    next_due = queue_reads.next_due
    waiting = queue_reads.waiting
    oldest = queue_reads.oldest
    queues = queue_reads.queues
    select = listing.select
    list = listing.list_requests
    request_ids = listing.request_ids
    unended = listing.unended
    list_running = listing.list_running
    running = sharing.running
    recalled = sharing.recalled
    look_around = sharing.look_around
    load = totals.load
    owner_load = totals.owner_load
    counts = totals.counts
    full = totals.full
    room_left = totals.room_left
    disk_full = totals.disk_full
    identity = totals.identity
    closed = closed_module.closed
    closed_range = closed_module.closed_range
    closed_bulk = closed_module.closed_bulk
    cut_closed = closed_module.cut_closed
    archive = closed_module.archive
    archivist = closed_module.archivist
    service_settings = service_rows.settings
    service_limits = service_rows.service_limits
    nodes = node_rows.nodes
    nodes_and_claims = node_rows.nodes_and_claims
