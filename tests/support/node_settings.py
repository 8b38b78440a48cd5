"""Settings of nodes that share a database, so that a test sees soon what happens when one is silent."""

from __future__ import annotations

from typing import Any

from broker import BrokerConfig, WorkerConfig
from titanic import ServerConfig
from titanic.store import LeaseConfig


def node_config(url: str, lease: float = 2.0, **settings: Any) -> ServerConfig:
    """`lease` in seconds."""
    defaults: dict[str, Any] = {
        "bind": ("tcp://127.0.0.1:*",),
        "retry_first": 0.02,
        "retry_most": 0.1,
        "grace": 0.0,
        "presence_most": 0.1,
        "worker": WorkerConfig(heartbeat_interval=0.5, liveness=10, reconnect_first=0.05, reconnect_most=0.2),
        "wire": BrokerConfig(heartbeat_interval=0.5, liveness=60),  # who stands still for a lease is not dead
        "lease": LeaseConfig(lease=lease, renew=lease / 8, margin=lease / 10),
    }
    return ServerConfig(**(defaults | settings), store=url)
