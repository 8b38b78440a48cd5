"""What the counters must say, counted from what is there. `{size}` is the bytes of a request `r`."""

from __future__ import annotations

from titanic.store.postgres.tables import KEY, REPLY, REQUEST
from titanic.util.ids import SIZE

_REPLY_SIZE = "(32 + octet_length(p.reason) + 4 * p.frames_count + p.frames_bytes)"

LOADS = f"""
    SELECT 's'::"char" AS kind, r.service AS name, count(*) AS waiting, sum({{size}}) AS bytes, count(q.uuid) AS ready
    FROM titanic.request r LEFT JOIN titanic.reply p ON p.uuid = r.uuid LEFT JOIN titanic.ready q ON q.uuid = r.uuid
    WHERE p.uuid IS NULL GROUP BY r.service
    UNION ALL
    SELECT 'o', owner, sum(waiting), sum(bytes), 0 FROM (
        SELECT r.owner, count(*) FILTER (WHERE p.uuid IS NULL) AS waiting, sum({{size}})
            + coalesce(sum({_REPLY_SIZE}), 0) AS bytes
        FROM titanic.request r LEFT JOIN titanic.reply p ON p.uuid = r.uuid WHERE r.owner <> '' GROUP BY r.owner
        UNION ALL
        SELECT owner, 0, sum(2 + octet_length(owner) + octet_length(key) + 16 + {SIZE} * cardinality(uuids))
        FROM titanic.key WHERE owner <> '' GROUP BY owner
    ) his GROUP BY owner"""

_USED = f"""
    (SELECT coalesce(sum({{size}} + {REQUEST}), 0) FROM titanic.request r)
    + (SELECT coalesce(sum({_REPLY_SIZE} + {REPLY}), 0) FROM titanic.reply p)
    + (SELECT coalesce(sum(cost), 0) FROM titanic.closed WHERE seq >= (SELECT closed_first FROM titanic.meta))
    + (SELECT coalesce(sum({KEY} + {SIZE} * cardinality(uuids)), 0) FROM titanic.key)"""

USAGE = f"""
    SELECT 'requests' AS what, count(*)::numeric AS found FROM titanic.request
    UNION ALL SELECT 'waiting', count(*) FROM titanic.ready
    UNION ALL SELECT 'delayed', count(*) FROM titanic.later
    UNION ALL SELECT 'replies', count(*) FROM titanic.reply
    UNION ALL SELECT 'used', {_USED}"""
