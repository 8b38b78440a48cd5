"""A request is handed in and acknowledged as stored: many in flight, and one after another."""

from __future__ import annotations

import asyncio
import socket
import sys
from importlib.metadata import version
from typing import Any

from benchmarks.peers import servers
from benchmarks.peers.peer import BODY, WINDOW, Peer
from support.zmtp_peer import message, null

FINE = b"\x03200"
"""The frame of an answer that says that a request is stored."""


class Titanic(Peer):
    """`titanic serve`, each request in a message of its own, as RFC 9 has it."""

    name = "titanic, RFC 9"

    def start(self) -> None:
        from titanic import Client

        endpoint = f"tcp://127.0.0.1:{servers.free_port()}"
        command = sys.executable, "-m", "titanic", "serve", "--bind", endpoint, "--store", self.place()
        self.run("server", *command, "--capacity", "16GiB", log=self.folder / "log")
        self.client = self.stack.enter_context(Client(endpoint, timeout=60))
        self.client.stats()

    def place(self) -> object:
        """Where the store is."""
        return self.folder / "store"

    def version(self) -> str:
        import titanic

        return f"{servers.said(sys.executable, '-m', 'titanic', '--version')}, from {titanic.__path__[0]}"

    def many(self, count: int) -> None:
        from broker import Pipeline

        with Pipeline(self.client.endpoint, timeout=60) as pipeline:
            for reply in pipeline.map("titanic.request", [["absent", BODY]] * count, window=WINDOW):
                assert reply[0] == b"200"

    def one(self, count: int) -> None:
        from broker import Client

        with Client(self.client.endpoint, timeout=60) as client:
            for _ in range(count):
                assert client.call("titanic.request", "absent", BODY)[0] == b"200"


class TitanicRaw(Titanic):
    """A client that costs next to nothing: a plain socket and messages made beforehand."""

    name = "titanic, raw client"

    def many(self, count: int) -> None:
        host, port = self.client.endpoint.removeprefix("tcp://").split(":")
        ask = message(b"MDPC02", b"\1", b"titanic.request", b"absent", BODY)
        sent = answered = 0
        rest = b""
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(null())
            while answered < count:
                if more := min(count, answered + WINDOW) - sent:
                    connection.sendall(ask * more)
                    sent += more
                got = rest + connection.recv(1 << 18)
                answered += got.count(FINE)
                rest = got[1 - len(FINE) :]


class TitanicBatches(Titanic):
    """Its own client, which puts a hundred requests into a message."""

    name = "titanic"

    def many(self, count: int) -> None:
        self.client.submit_many("absent", [BODY] * count, window=WINDOW, unique=False)


class TitanicKeys(Titanic):
    """As its client does it when it is not told otherwise: with a key for each, so that what has to be sent again is
    stored once. None of the peers does that."""

    name = "titanic, keys"

    def many(self, count: int) -> None:
        self.client.submit_many("absent", [BODY] * count, window=WINDOW)

    def one(self, count: int) -> None:
        for _ in range(count):
            self.client.submit("absent", BODY)


class PostgresBatches(TitanicBatches):
    """The store is in PostgreSQL."""

    name = "titanic, PostgreSQL"

    def place(self) -> object:
        return self.database()


class PostgresKeys(TitanicKeys):
    """The same with keys."""

    name = "titanic, PostgreSQL, keys"

    def place(self) -> object:
        return self.database()


class RabbitMQ(Peer):
    """A quorum queue with publisher confirms; pika, asynchronous for many, blocking for one."""

    name = "RabbitMQ quorum"

    def start(self) -> None:
        import pika

        self.parameters = pika.ConnectionParameters("127.0.0.1", self.serve(servers.rabbitmq), heartbeat=0)
        connection = pika.BlockingConnection(self.parameters)
        self.stack.callback(connection.close)
        self.channel = connection.channel()
        self.channel.queue_declare("bench", durable=True, arguments={"x-queue-type": "quorum"})
        self.channel.confirm_delivery()
        self.properties = pika.BasicProperties(delivery_mode=2)

    def version(self) -> str:
        there = " ".join(folder.name for folder in servers.RABBITMQ.glob("lib/rabbitmq_server-*"))
        return f"{there or 'RabbitMQ'}, pika {version('pika')}"

    def many(self, count: int) -> None:
        import pika

        sent = confirmed = 0

        def fill() -> None:
            nonlocal sent
            while sent < count and sent - confirmed < WINDOW:
                channel.basic_publish("", "bench", BODY, self.properties)
                sent += 1

        def on_confirm(frame: Any) -> None:
            nonlocal confirmed
            assert isinstance(frame.method, pika.spec.Basic.Ack)
            if frame.method.multiple:
                confirmed = frame.method.delivery_tag
            else:
                confirmed += 1
            if confirmed >= count:
                connection.close()
            else:
                fill()

        def on_channel(opened: Any) -> None:
            nonlocal channel
            channel = opened
            channel.confirm_delivery(on_confirm, callback=lambda _: fill())

        channel: Any = None
        connection = pika.SelectConnection(
            self.parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=on_channel),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )
        connection.ioloop.start()
        assert confirmed >= count

    def one(self, count: int) -> None:
        for _ in range(count):
            self.channel.basic_publish("", "bench", BODY, self.properties)


class Redis(Peer):
    """A stream; redis-py, pipelines of WINDOW for many."""

    name = "Redis stream"

    def start(self) -> None:
        import redis

        self.client = redis.Redis(port=self.serve(servers.redis))

    def version(self) -> str:
        return f"Redis {self.client.info('server')['redis_version']}, redis-py {version('redis')}"

    def many(self, count: int) -> None:
        while count > 0:
            pipeline = self.client.pipeline(transaction=False)
            for _ in range(min(count, WINDOW)):
                pipeline.xadd("bench", {"body": BODY})
            pipeline.execute()
            count -= WINDOW

    def one(self, count: int) -> None:
        for _ in range(count):
            self.client.xadd("bench", {"body": BODY})


class Nats(Peer):
    """A JetStream work queue on disk; nats-py."""

    name = "NATS JetStream"

    def start(self) -> None:
        import nats

        port = self.serve(servers.nats)
        self.loop = asyncio.new_event_loop()
        self.stack.callback(self.loop.close)
        self.connection = self.loop.run_until_complete(nats.connect(f"nats://127.0.0.1:{port}"))
        self.stack.callback(lambda: self.loop.run_until_complete(self.connection.close()))
        self.stream = self.connection.jetstream(publish_async_max_pending=WINDOW)
        self.loop.run_until_complete(self.stream.add_stream(name="bench", subjects=["bench"]))

    def version(self) -> str:
        return f"{servers.said(servers.program('nats-server'), '--version')}, nats-py {version('nats-py')}"

    def many(self, count: int) -> None:
        async def publish() -> None:
            futures = [await self.stream.publish_async("bench", BODY, wait_stall=60) for _ in range(count)]
            await asyncio.gather(*futures)

        self.loop.run_until_complete(publish())

    def one(self, count: int) -> None:
        async def publish() -> None:
            for _ in range(count):
                await self.stream.publish("bench", BODY)

        self.loop.run_until_complete(publish())


class Beanstalkd(Peer):
    """A tube; greenstalk for one, for many the protocol itself, since greenstalk has one in flight only."""

    name = "beanstalkd"

    def start(self) -> None:
        import greenstalk

        self.port = self.serve(servers.beanstalkd)
        self.client = self.stack.enter_context(greenstalk.Client(("127.0.0.1", self.port)))

    def version(self) -> str:
        return f"{servers.said(servers.program('beanstalkd'), '-v')}, greenstalk {version('greenstalk')}"

    def many(self, count: int) -> None:
        put = b"put 0 0 60 %d\r\n%b\r\n" % (len(BODY), BODY)
        with socket.create_connection(("127.0.0.1", self.port)) as connection, connection.makefile("rb") as replies:
            while count > 0:
                connection.sendall(put * min(count, WINDOW))
                for _ in range(min(count, WINDOW)):
                    assert replies.readline().startswith(b"INSERTED")
                count -= WINDOW

    def one(self, count: int) -> None:
        for _ in range(count):
            self.client.put(BODY)
