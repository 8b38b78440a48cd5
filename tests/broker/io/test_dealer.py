"""The numbered connections of a session."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq
from support.waiting import until
from zmq.utils.monitor import recv_monitor_message

from broker.io.dealer import Dealer
from broker.io.sockets import LINGER


def test_what_waits_in_a_connection_that_is_given_up_goes_nowhere(tmp_path: Path) -> None:
    """The session has sent it again on the next one: a broker that comes must not get both."""
    context = zmq.Context.instance()
    dealer = Dealer(context, f"ipc://{tmp_path}/broker.ipc")
    dealer.send([(1, [b"question"])])
    assert dealer.socket is not None
    with dealer.socket.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_MONITOR_STOPPED) as monitor:
        assert monitor.poll(30_000), "it has not found out that nobody is there"
        dealer.send([(1, None), (2, [b"question"])])
        while monitor.poll(30_000) and recv_monitor_message(monitor)["event"] != zmq.EVENT_MONITOR_STOPPED:
            pass  # libzmq closes a socket in another thread
    with context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(dealer.server)
        assert router.poll(30_000)
        assert router.recv_multipart()[1:] == [b"question"]
        assert not router.poll(500)
    dealer.close()


def test_what_was_sent_goes_out_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Dealer.close.__defaults__ == (LINGER,)
    monkeypatch.setattr(Dealer.close, "__defaults__", (30 * LINGER,))  # this machine may be slow
    context = zmq.Context.instance()
    dealer = Dealer(context, f"ipc://{tmp_path}/broker.ipc")
    dealer.send([(1, [b"good-bye"])])
    dealer.close()
    with context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(dealer.server)
        assert router.poll(30_000)
        assert router.recv_multipart()[1:] == [b"good-bye"]


def test_what_is_held_goes_to_who_is_there_and_to_nobody_else(tmp_path: Path) -> None:
    context = zmq.Context.instance()
    dealer = Dealer(context, f"ipc://{tmp_path}/broker.ipc", hold=True)
    dealer.send([(1, [b"question"])])
    assert not dealer.linked
    with context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(dealer.server)

        def flushed() -> bool:
            dealer.send([])
            return dealer.linked

        until(flushed)
        assert router.poll(30_000)
        assert router.recv_multipart()[1:] == [b"question"]
        assert not dealer.broke()
    until(dealer.broke)
    dealer.send([(1, [b"for the one that has gone"])])
    with context.socket(zmq.ROUTER) as router:
        router.linger = 0
        until(lambda: again(router, dealer.server))
        dealer.send([(1, None), (2, [b"for the next one"])])
        until(flushed)
        assert router.poll(30_000)
        assert router.recv_multipart()[1:] == [b"for the next one"]
    dealer.close()


def again(router: zmq.Socket[bytes], endpoint: str) -> bool:
    """Bind where another socket has just been closed."""
    try:
        router.bind(endpoint)
    except zmq.ZMQError:
        return False
    return True
