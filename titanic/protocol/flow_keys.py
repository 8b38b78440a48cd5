"""The idempotency keys of the steps of a flow. They are all that ties them together: whoever knows the UUID of a flow
finds its steps, and a step that is submitted again is the same request.

    flow:<UUID of the flow>:<chain>.<stage>     a step; both numbers from 0
    flow:<UUID of the flow>:error               what is executed because the flow has failed
    flow:<UUID of the flow>:end                 what closes the steps of a flow that is done

A group within a flow is a flow of its own, a step of the outer one.
"""

from __future__ import annotations

KEY_FOR = 30 * 86_400.0
"""Seconds that such a key counts: a flow may take so long."""

ERROR = "error"
END = "end"


def step_key(flow: str, place: str) -> str:
    """The key of what is at this place in a flow."""
    return f"flow:{flow}:{place}"


def place(chain: int, stage: int) -> str:
    """A place in a flow."""
    return f"{chain}.{stage}"
