"""Request-reply over ZeroMQ: a Majordomo broker (MDP 0.1 and 0.2), workers, clients.

    Broker     routes requests to services         broker/server.py
    Worker     serves a service with a function     broker/worker.py
    Client     one request at a time                broker/client.py
    Pipeline   many requests in flight              broker/pipeline.py

The protocol's cores, without sockets, are in `broker.core`. A name is loaded when it is first used: a client does
not wait for what a broker and a worker import. Type checkers find them in `__init__.pyi`.
"""

from broker.door import door
from broker.source import choose

choose()

_MODULES = {
    "broker.access.access_file": ["AccessFile", "load_access"],
    "broker.access.decision": ["Decision", "decide"],
    "broker.access.keys": ["Keys", "ensure_keys", "hash_token", "load_secret", "new_keys", "new_token", "public_key"],
    "broker.access.rules": ["Rule"],
    "broker.access.users": ["NOBODY", "Access", "Permission", "Reach", "User", "UserLimits", "user_from_json"],
    "broker.client": ["Client", "about_broker"],
    "broker.config": ["DEFAULT_ENDPOINT", "BrokerConfig", "ClientConfig", "WorkerConfig"],
    "broker.core.client": ["ClientSession", "EventKind"],
    "broker.core.job": ["Job"],
    "broker.core.json_reader": ["read_json"],
    "broker.core.mdp": ["CLIENT_QUEUE", "MALFORMED", "ErrorReply", "error_body", "read_error", "service_fault"],
    "broker.core.endpoints": ["named"],
    "broker.core.recognition": ["ANSWER", "UNANSWERING", "Kind", "Recognition"],
    "broker.core.requests": ["Request"],
    "broker.core.throttle": ["COUNTED", "LINES", "WINDOW", "Throttle"],
    "broker.core.timers": ["Timers", "earliest"],
    "broker.core.worker": ["WorkerSession"],
    "broker.delivery": ["DELIVERY", "Delivery"],
    "broker.door": ["door"],
    "broker.errors": [
        "AccessError",
        "BrokerError",
        "EndpointError",
        "KeyRefused",
        "OutOfSockets",
        "RemoteError",
        "TimedOut",
        "Unprotected",
        "UsageError",
    ],
    "broker.handlers": ["TRACEBACK", "Handler", "error_frames", "execute", "failure"],
    "broker.io.curve": ["Curve", "Key", "KeyProbe", "credentials"],
    "broker.io.dealer": ["Dealer"],
    "broker.io.channel": ["Channel"],
    "broker.io.channels": ["SessionChannel", "WorkerChannel"],
    "broker.io.exposure": ["is_exposed", "protect"],
    "broker.io.loop": ["Loop"],
    "broker.io.sockets": ["MOST_BODY_FRAMES", "unreachable"],
    "broker.multi_worker": ["MultiWorker"],
    "broker.pipeline": ["Pipeline", "Reply"],
    "broker.procedures": ["each", "finish"],
    "broker.server": ["Broker", "LocalPeer"],
    "broker.source": ["is_compiled"],
    "broker.worker": ["Worker"],
    "broker.worker_log": ["WorkerLog"],
}

__all__ = [name for names in _MODULES.values() for name in names]

__getattr__ = door(__name__, _MODULES)
