"""Limits and defaults that the client and the server agree on."""

DEFAULT_PRIORITY = 4
MAX_PRIORITY = 9
"""Higher priorities start first."""

MAX_KEY = 255
"""Bytes of an idempotency key."""

MOST_TOGETHER = 100
"""Requests that can share one idempotency key, and keys that one message can release."""

MOST_UUIDS = 1000
"""UUIDs, keys or requests that one message can name, and requests on one page of a listing."""

KEY_FOR = 86_400.0
"""Seconds that a key counts when its submitter does not say."""

MOST_SECONDS = 10 * 366 * 86_400.0
"""The longest time span that an option of a request may have."""
