"""A standalone cluster of Spark on this machine, a master and two workers, and a Spark Connect server that uses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from support.ports import free_port
from support.processes import PYTHONPATH
from support.waiting import until

HOME = Path(pyspark.__file__).parent
LONGEST = 300.0
"""Seconds that a part may take to start, on a busy machine."""
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class Cluster:
    """Where its parts are. Nothing of it has a page."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.workers: list[subprocess.Popen[bytes]] = []
        port = free_port()
        master = "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)
        self._start("master", *master, "--webui-port", "0", says="I have been elected leader")
        at = f"spark://127.0.0.1:{port}"
        for number in range(2):
            worker = "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"
            more = "-c", "1", "-m", "2g", "-d", str(folder / f"work-{number}"), at
            self.workers.append(
                self._start(f"worker-{number}", *worker, *more, says="Successfully registered with master")
            )
        port = free_port()
        self.remote = f"sc://127.0.0.1:{port}"
        settings = {
            "spark.master": at,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "768m",
            "spark.executor.memory": "768m",
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        options = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
        connect = "org.apache.spark.sql.connect.service.SparkConnectServer"
        submit = ("org.apache.spark.deploy.SparkSubmit", *options, "--class", connect, "spark-internal")
        self._start("connect", *submit, says="Spark Connect server started at")

    def executors(self) -> list[int]:
        """The process ids of the executors that run."""
        parents = {str(worker.pid) for worker in self.workers}
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if parent in parents and b"CoarseGrainedExecutorBackend" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def _start(self, name: str, *arguments: str, says: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{name}.log"
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
            "SPARK_DAEMON_JAVA_OPTS": JAVA,
            "SPARK_DAEMON_MEMORY": "768m",
            "PYTHONPATH": PYTHONPATH,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        with log.open("wb") as file:
            process = subprocess.Popen(
                [str(HOME / "bin/spark-class"), *arguments],
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        self._stack.callback(process.wait)
        self._stack.callback(self._kill, process)

        def ready() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            return says in log.read_text()

        until(ready, LONGEST)
        return process

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        """With its executors."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """It runs until the end of the block."""
    with ExitStack() as stack:
        yield Cluster(folder, stack)
