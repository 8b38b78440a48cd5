"""The check of `closed`: what must be true of its numbers, and which of two that disagree is to be believed.

    first             sound              sequence
      │                 │                   │
      ├─────────────────┤ entries …         │        numbers without gaps, the last one given out is `sequence`

An entry's checksum is over its number, so one that is sound has the number that it was given. A number between two
sound entries was given out: when its entry is damaged or missing, an empty one takes its place. Up to MOST_MISSING
that is believed of the numbers behind the last sound entry, too. Where `sequence` says more, it is taken for damaged:
what is right follows from the entries and from what a registered archive has acknowledged. Those numbers certainly
were given out, and must not be given out again: the archive would never read the new ones. (What it has read and not
acknowledged may be given out again, since it reads from its acknowledgement on.) Damaged entries far from all others
are set aside.
"""

from __future__ import annotations

from collections.abc import Iterable

from titanic.errors import RecordCorrupt
from titanic.store.lmdb import closed_record
from titanic.store.lmdb.closed_ring import kept
from titanic.store.lmdb.record import verify
from titanic.store.lmdb.schema import (
    ARCHIVE,
    ARCHIVE_KEY,
    CHARGED_KEY,
    SEQUENCE_KEY,
    TIME_SIZE,
    U64,
    closed_key,
    sequence_of,
)
from titanic.store.lmdb.tools.findings import Remedy, Verb, Walk

MOST_MISSING = 10_000
"""Entries of `closed` that are put in for missing ones, at most, one after the other."""

_MOST = 1 << 62
"""A number that is never reached."""


def check_closed(walk: Walk) -> None:
    row, fault = walk.meta_number(CHARGED_KEY, U64)
    if "bytes" in fault and not walk.light:
        walk.report("meta", None, f"'charged' {fault}", Remedy(Verb.DELETE, "meta", CHARGED_KEY))
    charged = row[0] if row else _MOST
    first = sound = 0  # the numbers of the first and of the last sound entry
    spoiled: dict[int, str] = {}  # the damaged ones since then, and what is wrong with them
    for key, record in walk.rows("closed", TIME_SIZE):
        sequence = sequence_of(key)
        try:
            header = closed_record.decode_header(sequence, record)
            for ref in header.refs:
                walk.refer("closed", key, ref)
            if sequence > charged:
                walk.own(header.owner, kept(header, len(record)))
            if not walk.light:
                verify(key, record, closed_record.DATABASE)
                closed_record.decode_rest(sequence, header, walk.tx.fetch)
        except RecordCorrupt as error:
            spoiled[sequence] = str(error)
            continue
        _stretch(walk, sound, sequence, spoiled)
        spoiled = {}
        first, sound = first or sequence, sequence
    _end_of_ring(walk, first, sound, spoiled)


def _end_of_ring(walk: Walk, first: int, sound: int, spoiled: dict[int, str]) -> None:
    """What is behind the last sound entry, and what `meta` says of it."""
    found, fault = walk.meta_number(ARCHIVE_KEY, ARCHIVE)
    registered, upto = found or (0, 0)
    row, why = walk.meta_number(SEQUENCE_KEY, U64)
    sequence = last = row[0] if row else 0
    archived = upto if registered and upto < _MOST and (row is None or upto <= sequence) else 0
    least = max(sound, archived)
    if row is None:
        start = least or min(spoiled, default=0)
        last = max([least, *(n for n in spoiled if n < _MOST and n - start <= MOST_MISSING)])
        if last or "bytes" in why:
            _put_sequence(walk, f"'sequence' {why}", last)
    elif sequence >= _MOST and not sound:
        last = least
        _put_sequence(walk, f"'sequence' is {sequence}", last)
    elif sound and (sound > sequence or sequence - least > MOST_MISSING):
        last = least
        _put_sequence(walk, f"'sequence' is {sequence}, 'closed' goes up to {sound}", last)
    if sound or spoiled:
        _stretch(walk, sound, last + 1, spoiled)
    if "bytes" in fault:
        # All that is there is to be archived, once more perhaps: to keep too much does less harm than too little.
        remedy = Remedy(Verb.PUT, "meta", ARCHIVE_KEY, ARCHIVE.pack(1, first - 1 if first else last))
        walk.report("meta", None, f"'archive' {fault}", remedy, across=True)
    elif upto > last:
        remedy = Remedy(Verb.PUT, "meta", ARCHIVE_KEY, ARCHIVE.pack(registered, last))
        walk.report("meta", None, f"the archive has {upto}, the last is {last}", remedy, across=True)


def _put_sequence(walk: Walk, what: str, right: int) -> None:
    walk.report("meta", None, what, Remedy(Verb.PUT, "meta", SEQUENCE_KEY, U64.pack(right)), across=True)


def _stretch(walk: Walk, sound: int, end: int, spoiled: dict[int, str]) -> None:
    """Report what is between a sound entry (0: none) and the number `end`; beyond it nothing may be."""
    kept = []
    for number, what in spoiled.items():
        near = (sound and number - sound <= MOST_MISSING) or end - number <= MOST_MISSING
        verb = Verb.LOSE_ENTRY if near and number < end else Verb.SET_ASIDE
        if verb is Verb.LOSE_ENTRY:
            kept.append(number)
        walk.report("closed", closed_key(number), what, Remedy(verb, "closed", closed_key(number)))
    _gaps(walk, [*([sound] if sound else []), *kept, end])


def _gaps(walk: Walk, numbers: Iterable[int]) -> None:
    """Report the numbers that are missing between these, which ascend."""
    expected = 0
    for number in numbers:
        if expected and number > expected:
            missing = range(expected, number) if number - expected <= MOST_MISSING else ()
            remedies = [Remedy(Verb.LOSE_ENTRY, "closed", closed_key(lost)) for lost in missing]
            walk.report("closed", None, f"{expected} … {number - 1} are missing", *remedies, across=True)
        expected = number + 1
