"""The command line `titanic-data`."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.cli_data import titanic_data
from support.cli_titanic import CLEAN, running, serving, working
from support.processes import PYTHONPATH
from support.ring import ring
from support.spark import JAVA, LONGEST
from support.waiting import PATIENCE, until

from titanic import Client
from titanic_data.cli import COMMANDS
from titanic_data.store_reader import forget

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "data" / "sample" / "closed.parquet"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ring(tmp_path_factory.mktemp("cli") / "store", 300, step_us=1_200_000_000)


@pytest.fixture(scope="module")
def archive(store: Path) -> Path:
    where = store.parent / "archive"
    done = titanic_data("archive", "--store", store, "--archive", where, "--rows-per-range", "100")
    assert done.code == 0
    assert done.line.startswith(f"{where}: 300 rows added, ")
    assert done.line.endswith("complete up to number 300")
    return where


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    done = titanic_data("help", command)
    assert done.code == 0
    assert done.out.decode().startswith(f"Usage: titanic-data {command} ")
    assert b"Example" in done.out


def test_it_is_a_program_that_does_not_wait_for_spark() -> None:
    code = "import sys; from titanic_data.cli import main; main(['--help'], standalone_mode=False); "
    code += "print('pyspark' in sys.modules, 'pyarrow' in sys.modules)"
    env = CLEAN | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=PATIENCE, check=True
    )
    assert "Usage: " in done.stdout
    assert done.stdout.endswith("False False\n")


def test_an_archive_and_what_keeps_it_in_order(store: Path, archive: Path) -> None:
    assert titanic_data("verify", "--archive", archive).line == (
        f"{archive} is intact: 8 files read, 300 rows, numbers 1 to 300"
    )
    again = titanic_data("archive", "--store", store, "--archive", archive, "--json").json
    assert again == {"rows": 0, "bytes": 0, "ranges": 0, "head": 300, "acts": 0}
    files = titanic_data("files", "--archive", archive).out.decode().split()
    assert duckdb.sql(f"SELECT count(DISTINCT request_id) FROM read_parquet({files})").fetchall() == [(300,)]


def test_damage_and_its_repair(tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 300, step_us=1_200_000_000)
    archive = tmp_path / "archive"
    titanic_data("archive", "--store", store, "--archive", archive)
    victim = Path(titanic_data("files", "--archive", archive).out.decode().split()[2])
    victim.unlink()
    done = titanic_data("verify", "--archive", archive)
    assert done.code == 1
    first, last = done.out.decode().splitlines()
    assert (
        first
        == f"{victim.parent.name}/{victim.name}: it is missing → titanic-data restore-range 1 300 --archive {archive}"
    )
    assert last == f"{archive} is damaged: 1 fault; 6 files read, 300 rows"
    assert titanic_data("verify", "--archive", archive, "--json").json["faults"][0]["range"] == [1, 300]
    done = titanic_data("restore-range", "1", "300", "--store", store, "--archive", archive)
    assert done.line == f"{archive}: 300 rows rewritten"
    assert titanic_data("verify", "--archive", archive).code == 0
    assert titanic_data("vacuum", "--archive", archive, "--keep", "0").line.startswith(f"{archive}: 5 files deleted")
    assert titanic_data("compact", "--archive", archive).line == f"{archive}: nothing to do, 6 files in 1 range"
    small = tmp_path / "small"
    assert titanic_data("unregister", "--store", store).code == 0
    assert titanic_data("archive", "--store", store, "--archive", small, "--rows-per-range", "50").code == 0
    done = titanic_data("compact", "--archive", small).line
    assert done == f"{small}: 10 files in 6 ranges became 6 files in 1 range; titanic-data vacuum deletes the old files"
    done = titanic_data("vacuum", "--archive", small).line
    assert done.startswith(f"{small}: 0 files deleted, 0 B; 10 files, ")
    assert done.endswith("kept: superseded less than 3600 s ago")
    assert titanic_data("compact", "--archive", small, "--json").json == {"made": 0, "files": 6, "ranges": 1}
    listed = titanic_data("files", "--archive", small, "--json").json
    assert (len(listed), sum(one["rows"] for one in listed)) == (6, 300)
    assert all(Path(one["path"]).stat().st_size == one["bytes"] for one in listed)
    done = titanic_data("vacuum", "--archive", small, "--keep", "0", "--json").json
    assert (done["files"], done["kept_files"], done["kept_bytes"]) == (10, 0, 0)


def test_unregistering(tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 5)
    titanic_data("archive", "--store", store, "--archive", tmp_path / "archive")
    assert titanic_data("unregister", "--store", store).line == f"{store}: the ring no longer waits for an archive"
    forget(store)


@pytest.mark.usefixtures("spark")
def test_reports(archive: Path, store: Path, tmp_path: Path) -> None:
    done = titanic_data("report", "retries", "--archive", archive, "--where", "service = 'mail'")
    lines = done.out.decode().splitlines()
    assert lines[0].split() == ["SERVICE", "ATTEMPTS", "REQUESTS", "SHARE", "OK"]
    assert lines[1].split()[:2] == ["mail", "0"]
    picture, answer = tmp_path / "l.png", tmp_path / "l.parquet"
    files = ("--plot", picture, "--parquet-out", answer)
    out = titanic_data("report", "latency", "--live", "--store", store, "--json", *files)
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = out.json
    assert len(rows) == len(pq.read_table(answer)) > 2
    assert sum(row["requests"] for row in rows) == 300
    assert rows[0]["hour"] == "2023-11-14T22:00:00+00:00"
    done = titanic_data("report", "breaches", "--parquet", SAMPLE, "--sla", "resize<2s", "--sla", "mail<1m")
    assert done.out.decode().splitlines()[1].split()[0] in ("resize", "mail")


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("by", "times"),
    [
        ("second", {"2023-11-14 22:13:30", "2023-11-14 22:15:00", "2023-11-14 22:16:30"}),
        ("minute", {"2023-11-14 22:13", "2023-11-14 22:15", "2023-11-14 22:16"}),
        ("day", {"2023-11-14"}),
    ],
)
def test_how_periods_are_written(by: str, times: set[str], tmp_path: Path) -> None:
    store = ring(tmp_path / "store", 3, step_us=90_000_000)
    done = titanic_data("report", "throughput", "--live", "--store", store, "--by", by)
    assert set(re.findall(r"2023-[\d-]+(?: [\d:]+(?=  ))?", done.out.decode())) == times


@pytest.mark.usefixtures("spark")
def test_a_service_level_for_a_service_that_is_not_there() -> None:
    arguments = ("report", "breaches", "--parquet", SAMPLE, "--sla", "resiz<2s")
    done = titanic_data(*arguments)
    assert done.code == 0
    assert done.err == "no requests of 'resiz'; known: invoice, mail, report, resize; did you mean resize?\n"
    assert titanic_data(*arguments, "--where", "seq < 0").err == "no requests of 'resiz'; there are none at all\n"
    done = titanic_data(*arguments[:-1], "mail<1s", "--where", "status = 'cancelled'")
    assert done.err == "all requests of mail were cancelled; cancelled requests do not count\n"


@pytest.mark.usefixtures("spark")
def test_there_and_back_again(spark: SparkSession, tmp_path: Path) -> None:
    texts = [*(f"text {n}" for n in range(47)), '{"a": 1, "b": 2}', "Hello, Bob\nBye, Ann", 'say "hi"']
    table = [(f"order {n}", text, n % 3 or "", 900.5) for n, text in enumerate(texts)]
    orders = tmp_path / "orders.csv"
    with orders.open("w", newline="") as file:
        csv.writer(file).writerows([("order", "text", "priority", "ttl"), *table])
    columns = ("--key-column", "order", "--service", "upper")
    with serving(tmp_path) as (_, endpoint):
        where = ("--endpoint", endpoint)
        submitted = titanic_data("submit", orders, *columns, "--body-column", "text", *where)
        assert submitted.line == f"50 rows of {orders} submitted"
        with Client(endpoint) as client:
            rows = client.list(limit=100)[0]
            assert {row["key"]: row["priority"] for row in rows} == {f"order {n}": n % 3 or 4 for n in range(50)}
        done = titanic_data("collect", orders, tmp_path / "early", "--key-column", "order", *where)
        assert (done.code, done.line) == (3, f"{tmp_path / 'early'}: 50 pending")
        with working(tmp_path, endpoint, "upper", "tr", "a-z", "A-Z"):
            arguments = (orders, tmp_path / "out", "--key-column", "order", "--wait", "60", "--close", *where)
            assert titanic_data("collect", *arguments).line == f"{tmp_path / 'out'}: 50 ok"
        replies = {row.key: bytes(row.reply) for row in spark.read.parquet(str(tmp_path / "out")).collect()}
        assert replies == {f"order {n}": text.upper().encode() for n, text in enumerate(texts)}
        assert titanic_data("submit", orders, *columns, "--body-column", "text", *where).code == 0
        done = titanic_data("report", "duplicates", "--live", "--store", tmp_path / "store", *where)
        assert done.out.decode().splitlines()[1].split() == ["upper", "50", "50", "50", "0"]
        assert done.err == "the queue has avoided 50 duplicates since its start\n"
        archive = ("--archive", tmp_path / "archive")
        assert titanic_data("archive", "--store", tmp_path / "store", *archive, *where, "--json").json["rows"] == 50
        chosen = ("--where", "idempotency_key IN ('order 1', 'order 2')", *archive, *where)
        lines = titanic_data("replay", *chosen, "--dry-run").out.decode().splitlines()
        assert [line.split() for line in lines[1:]] == [["upper", "ok", "2", "12", "0"]]
        assert titanic_data("replay", *chosen).line == "2 requests submitted again: 2 new"
        more = ("--where", "idempotency_key LIKE 'order 1%'", *archive, *where)
        others = "the others were submitted before under the name 'replay'"
        assert titanic_data("replay", *more).line == f"11 requests submitted again: 10 new, {others}"
        with Client(endpoint) as client:
            assert client.stats()["store"]["requests"] == 12
            for name in ("it's", "its", 'it"s'):
                assert titanic_data("replay", *chosen, "--name", name).line == "2 requests submitted again: 2 new"
            assert client.stats()["store"]["requests"] == 18
            assert sum(row["key"].startswith("it's ") for row in client.list()[0]) == 2


@pytest.mark.usefixtures("spark")
def test_what_was_too_large_is_not_submitted_again(archive: Path, tmp_path: Path) -> None:
    where = ("--where", "seq <= 14", "--archive", archive)
    with serving(tmp_path) as (_, endpoint):
        done = titanic_data("replay", *where, "--endpoint", endpoint)
        assert done.code == 1
        fact = "the bodies of 2 were larger than the ring keeps; leave them out with --skip-missing"
        assert done.err == f"titanic-data: not all of these requests can be submitted again; {fact}\n"
        with Client(endpoint) as client:
            assert client.stats()["store"]["requests"] == 0
            done = titanic_data("replay", *where, "--endpoint", endpoint, "--skip-missing")
            assert done.line == "12 requests submitted again: 12 new"
            assert client.stats()["store"]["requests"] == 12


@pytest.mark.timeout(LONGEST)
def test_a_worker(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(
        "def shout(requests):\n    return requests.selectExpr('id', \"concat(CAST(body AS STRING), '!') AS reply\")\n"
    )
    path = f"{PYTHONPATH}:{tmp_path}"
    with serving(tmp_path) as (_, endpoint), Client(endpoint) as client:
        arguments = ("work", "shout", "shout:shout", "--endpoint", endpoint, "--lanes", "8")
        program = (sys.executable, "-m", "titanic_data")
        with running(
            tmp_path / "work.log", *arguments, program=program, PYTHONPATH=path, JAVA_TOOL_OPTIONS=JAVA
        ) as worker:
            uuid = client.submit("shout", "hello")
            assert client.wait(uuid, 300) == [b"hello!"]
            worker.process.terminate()
            assert worker.ends() == 0
    assert until(lambda: worker.process.poll() is not None)


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (
            ("verify", "--archive", "none"),
            2,
            "titanic-data: none is not an archive; it has no archive.json; name",
        ),
        (("archive", "--store", "none"), 2, "titanic-data: there is no store at none; No such file or directory"),
        (("report", "latency", "--archive", "none"), 2, "titanic-data: none is not an archive"),
        (("report", "latency", "--live", "--store", "none"), 2, "titanic-data: there is no store at none"),
        (("report", "latency", "--parquet", "none"), 2, "there is no file none"),
        (("report", "bodies", "--parquet", SAMPLE, "--live"), 2, "--parquet and --live name different sources"),
        (("report", "bodies", "--parquet", SAMPLE, "--archive", "a"), 2, "--archive and --parquet name different"),
        (("report", "bodies", "--parquet", ROOT / "README.md"), 1, "README.md is not a Parquet file; "),
        (("report", "bodies", "--parquet", SAMPLE, "--plot", "x.bmp"), 2, "its name must end with .png, .svg, .pdf"),
        (("report", "bodies", "--parquet", SAMPLE, "--plot", "no/x.png"), 2, "there is no directory no for x.png"),
        (("report", "bodies", "--parquet", SAMPLE, "--parquet-out", SAMPLE), 2, "is the file that the report reads"),
        (("report", "latencies"), 2, "'latencies' is not one of 'latency', 'throughput'"),
        (("report", "breaches"), 2, "breaches needs --sla"),
        (("report", "breaches", "--sla", "resize"), 1, "titanic-data: 'resize' is not a service level; write it like"),
        (("replay", "--where", "true", "--archive", "none"), 2, "titanic-data: none is not an archive"),
        (("work", "s", "no_such:function"), 2, "there is no no_such:function"),
        (("work", "s", "json"), 2, "json is not a function; write it as MODULE:FUNCTION"),
        (("archiv",), 2, "no such command: archiv; did you mean archive?"),
        (("check",), 2, "no such command: check; did you mean verify?"),
    ],
)
def test_what_goes_wrong_is_said(
    arguments: tuple[str, ...], code: int, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = titanic_data(*arguments)
    assert done.code == code
    assert fault in done.err
    assert list(tmp_path.iterdir()) == []  # nothing was begun


@pytest.mark.usefixtures("spark")
def test_what_spark_says_is_one_line(tmp_path: Path) -> None:
    for where, fault in (("servic = 'x'", "A column, variable, or function"), ("service = = 1", "Syntax error at or")):
        done = titanic_data("report", "bodies", "--parquet", SAMPLE, "--where", where)
        assert done.code == 2
        assert f"titanic-data: --where cannot be {where!r}: {fault}" in done.err
    (tmp_path / "rows.json").write_text(json.dumps({"key": "k", "body": "b", "colour": "red"}))
    done = titanic_data("submit", tmp_path / "rows.json", "--service", "s")
    assert done.err.startswith("titanic-data: the column colour would be lost; a request has body, ")
    assert len(done.err.splitlines()) == 1
    for text, fault in (
        ("k,Hello, Bob,1", "Malformed CSV record: k,Hello, Bob,1; put values with commas, quotes or line "),
        ('k,"say \\"hi\\"",1', "Unescaped quote character '\"' inside quoted value of CSV field; put values with "),
        ("k,b,high", "The value 'high' of the type"),
    ):
        (tmp_path / "rows.csv").write_text(f"key,body,priority\n{text}\n")
        done = titanic_data("submit", tmp_path / "rows.csv", "--service", "s")
        assert done.err.startswith(f"titanic-data: {fault}")
        assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("java", "fault"),
    [
        (
            None,
            "Spark needs Java; JAVA_HOME is {home}, which has no bin/java; install a Java 17 or newer; on Debian",
        ),
        ('echo openjdk version \\"11.0.2\\" >&2', "is too old; it is version 11; install a Java 17"),
        ('echo java version \\"1.8.0_292\\" >&2', "is too old; it is version 8; install a Java 17"),
        ("echo strange", "does not report a version; strange; install"),
    ],
)
def test_a_java_that_will_not_do(java: str | None, fault: str, tmp_path: Path) -> None:
    if java is not None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\n{java}\n")
        (tmp_path / "bin" / "java").chmod(0o755)
    done = titanic_data("report", "bodies", "--parquet", SAMPLE, JAVA_HOME=str(tmp_path))
    assert done.code == 1
    assert fault.format(home=tmp_path) in done.err
