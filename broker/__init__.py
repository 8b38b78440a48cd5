"""Request-reply over ZeroMQ: a Majordomo broker (MDP 0.1 and 0.2), workers, clients.

    Broker     routes requests to services         broker/server.py
    Worker     serves a service with a function     broker/worker.py
    Client     one request at a time                broker/client.py
    Pipeline   many requests in flight              broker/client.py

The protocol's cores, without sockets, are in `broker.core`.
"""

from broker.client import Client, Pipeline, Reply
from broker.config import DEFAULT_ENDPOINT, BrokerConfig, ClientConfig, WorkerConfig
from broker.core.client import ClientSession, EventKind
from broker.core.mdp import CLIENT_QUEUE, ErrorReply, error_body, read_error, service_fault
from broker.core.recognition import ANSWER, Kind, Recognition
from broker.core.request import Request
from broker.core.timers import Timers
from broker.core.worker import Job, WorkerSession
from broker.errors import BrokerError, EndpointError, OutOfSockets, RemoteError, TimedOut, UsageError
from broker.io.dealer import Dealer, unreachable
from broker.io.loop import Loop
from broker.server import Broker, LocalPeer
from broker.worker import Handler, Worker
from broker.worker_log import Presence

__all__ = [
    "ANSWER",
    "CLIENT_QUEUE",
    "DEFAULT_ENDPOINT",
    "Broker",
    "BrokerConfig",
    "BrokerError",
    "Client",
    "ClientConfig",
    "ClientSession",
    "Dealer",
    "EndpointError",
    "ErrorReply",
    "EventKind",
    "Handler",
    "Job",
    "Kind",
    "LocalPeer",
    "Loop",
    "OutOfSockets",
    "Pipeline",
    "Presence",
    "Recognition",
    "RemoteError",
    "Reply",
    "Request",
    "TimedOut",
    "Timers",
    "UsageError",
    "Worker",
    "WorkerConfig",
    "WorkerSession",
    "error_body",
    "read_error",
    "service_fault",
    "unreachable",
]
