"""Who may import whom. The rules are the architecture: cores know no sockets, the broker knows no Titanic."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import broker
import titanic
from broker import aio, patterns

PUBLIC = {"broker": broker, "broker.aio": aio, "broker.patterns": patterns}
ROOT = Path(__file__).parent.parent
SHELLS = {"broker/server.py", "broker/client.py", "broker/worker_base.py", "broker/aio/exchange.py"}
"""Beside `broker/io`: what runs a core on its sockets."""
PATTERN_CORE = "core.py"
"""The file of a pattern that decides, and knows no sockets; the others of its folder are shells."""


PIPELINE = ("data/titanic_data", "data/pyspark_titanic")


@cache
def sources(package: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py"))


CORES = [
    source
    for source in sources("broker")
    if source.startswith("broker/core/")
    or source in {f"broker/access/{name}.py" for name in ("authorization", "users")}
    or (source.startswith("broker/patterns/") and source.rpartition("/")[2] == PATTERN_CORE)
]


@cache
def tree(source: str) -> ast.Module:
    return ast.parse((ROOT / source).read_text())


@cache
def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(tree(source)))


@cache
def imports(source: str) -> list[tuple[str, str | None]]:
    """Module and, for `from … import`, each name."""
    found: list[tuple[str, str | None]] = []
    for node in nodes(source):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{source}: relative imports are not used here"
            found += [(node.module or "", alias.name) for alias in node.names]
    return found


def modules_of(module: str, name: str | None) -> Iterator[str]:
    """The modules that an import loads: a name may be one itself."""
    below = f"{module.replace('.', '/')}/{name}"
    if name and ((ROOT / f"{below}.py").exists() or (ROOT / below).is_dir()):
        yield f"{module}.{name}"
    else:
        yield module


def importers(*packages: str, of: str) -> set[str]:
    """The files of some packages that import a module or anything below it."""
    return {
        source
        for package in packages
        for source in sources(package)
        if any(module.split(".")[0] == of for module, _ in imports(source))
    }


def test_there_is_something_to_look_at() -> None:
    assert set(sources("broker")) > SHELLS
    assert len(CORES) > 15
    assert sources("titanic")
    assert all(map(sources, PIPELINE))


def test_titanic_itself_is_the_front_door() -> None:
    assert len(list((ROOT / "titanic").glob("*.py"))) <= 7, "a module belongs into a room"


def test_the_broker_knows_no_titanic() -> None:
    assert importers("broker", of="titanic") == set()


def test_nobody_knows_the_pipeline() -> None:
    for package in ("titanic_data", "pyspark_titanic"):
        assert importers("broker", "titanic", of=package) == set()


def test_the_queue_needs_nothing_of_the_pipeline() -> None:
    for package in ("pyspark", "pyarrow", "numpy"):
        assert importers("broker", "titanic", of=package) == set()


def test_the_source_for_spark_is_only_that() -> None:
    assert importers("data/titanic_data", of="pyspark_titanic") == set()
    for package in ("titanic", "broker", "zmq", "pyarrow"):
        assert importers("data/pyspark_titanic", of=package) == set()


def test_the_pipeline_uses_public_names() -> None:
    for source in [source for package in PIPELINE for source in sources(package)]:
        public = {"titanic", "titanic.store", "titanic.errors", "titanic.entry", "titanic.facts.audit", "broker"}
        in_cli = {"titanic.cli", "titanic.settings", "titanic.util.text", "titanic.version"}
        for module, _ in imports(source):
            if module.split(".")[0] in ("titanic", "broker"):
                known = module in public or ("/cli/" in source and any(module.startswith(one) for one in in_cli))
                assert known, f"{source} imports {module}"


def imported(package: str) -> set[str]:
    """The modules that the files of a package import, without those of the standard library."""
    found = {module for source in sources(package) for module, _ in imports(source)}
    return {module for module in found if module.split(".")[0] not in sys.stdlib_module_names}


BOTH_SIDES = ("broker", "msgspec", "titanic.errors", "titanic.protocol", "titanic.util")
"""What a client and a server share."""


@pytest.mark.parametrize(
    ("package", "known"),
    [
        ("titanic/protocol", BOTH_SIDES),
        ("titanic/client", (*BOTH_SIDES, "titanic.client", "titanic.telemetry")),
        ("titanic/aio", (*BOTH_SIDES, "titanic.client", "titanic.aio", "titanic.telemetry")),
    ],
)
def test_client_and_protocol_know_nothing_of_the_server(package: str, known: tuple[str, ...]) -> None:
    assert not [
        module for module in imported(package) if not f"{module}.".startswith(tuple(f"{one}." for one in known))
    ]


def test_a_client_loads_nothing_of_the_server() -> None:
    program = "import sys; from titanic import Client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert {"zmq", "titanic.client.client", "broker.client"} <= loaded
    others = {
        module for module in loaded if module.split(".")[0] in {"lmdb", "click", "rich", "prometheus_client", "uuid6"}
    }
    server = ("commit", "settings", "dispatch", "logs", "metrics", "server", "services", "store")
    assert not others | {module for module in loaded if module.startswith(tuple(f"titanic.{one}" for one in server))}
    assert loaded.isdisjoint({"broker.core.broker", "broker.core.worker", "broker.io.connections", "broker.io.loop"})
    assert "asyncio" not in loaded


START = """
import sys
from pathlib import Path
import titanic.cli.serve
from titanic import Server, ServerConfig
with Server(ServerConfig(store=Path(sys.argv[1], "store"), bind=(f"ipc://{sys.argv[1]}/server",))):
    print(*sys.modules)
"""


def test_a_server_loads_nothing_of_what_it_was_not_told_to_have(tmp_path: Path) -> None:
    """Each module is time until the first answer after a start. This one has no users, no other nodes, no file of
    settings, and gathers nothing."""
    command = [sys.executable, "-c", START, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert {"titanic.server.server", "titanic.store.lmdb.store", "broker.core.broker"} <= loaded
    others = {"broker.access.access_file", "broker.access.decision", "broker.access.keys"}
    others |= {"broker.zmtp.encryption", "nacl"}
    others |= {"broker.io.server_keys", "broker.worker", "broker.pipeline"}
    others |= {f"titanic.cluster.{name}" for name in ("dispatcher", "node", "notifications", "claims", "settings")}
    others |= {f"titanic.server.{name}" for name in ("attached_front", "gather", "mdp_worker")}
    others |= {
        "titanic.dispatch.transport_foreign",
        "titanic.store.moving",
        "titanic.store.moving_engines",
        "titanic.store.postgres",
        "titanic.metrics",
    }
    others |= {
        "asyncio",
        "difflib",
        "hashlib",
        "hmac",
        "multiprocessing",
        "secrets",
        "subprocess",
        "tempfile",
        "tomllib",
    }
    assert loaded.isdisjoint(others), loaded & others
    assert not [one for one in loaded if one.startswith(("broker.patterns.", "titanic.tasks", "titanic.aio"))]


def test_only_shells_of_the_broker_know_sockets() -> None:
    outside = {one for one in importers("broker", of="zmq") if not one.startswith("broker/io/")} - SHELLS
    outside -= {"broker/access/keys.py"}  # it makes key pairs, and not when it is imported
    assert {one for one in outside if not one.startswith("broker/patterns/")} == set()


def test_the_store_knows_no_sockets() -> None:
    assert not [source for source in importers("titanic", of="zmq") if source.startswith("titanic/store/")]


def test_cores_read_no_clock_and_start_no_thread() -> None:
    for source in CORES:
        modules = {one for module, name in imports(source) for one in modules_of(module, name)}
        tops = {module.split(".")[0] for module in modules}
        assert tops.isdisjoint({"zmq", "time", "threading", "socket", "select", "asyncio", "datetime", "logging"}), (
            source
        )
        for module in (one for one in modules if one.startswith("broker")):
            assert f"{module.replace('.', '/')}.py" in {*CORES, "broker/config.py", "broker/errors.py"}, module


def test_zmtp_can_be_used_alone() -> None:
    for source in [one for one in sources("broker") if one.startswith("broker/zmtp/")]:
        modules = {one for module, name in imports(source) for one in modules_of(module, name)}
        ours = {module for module in modules if module.startswith("broker")}
        assert all(module.startswith("broker.zmtp") for module in ours), source
        tops = {module.split(".")[0] for module in modules - ours}
        assert tops <= {"__future__", "collections", "enum", "hmac", "nacl", "os", "sys", "typing"}, source


def test_the_patterns_stand_on_the_broker_and_not_the_other_way() -> None:
    for source in sources("broker"):
        if not source.startswith("broker/patterns/"):
            assert not [module for module, _ in imports(source) if module.startswith("broker.patterns")], source


def test_only_the_stores_engine_knows_lmdb() -> None:
    known = importers("broker", "titanic", *PIPELINE, of="lmdb")
    assert all(source.startswith("titanic/store/lmdb/") for source in known)


def test_only_the_stores_other_engine_knows_psycopg() -> None:
    known = importers("broker", "titanic", *PIPELINE, of="psycopg")
    assert known
    assert all(source.startswith("titanic/store/postgres/") for source in known)


def test_the_engines_know_nothing_of_each_other() -> None:
    for engine, other in (("lmdb", "postgres"), ("postgres", "lmdb")):
        assert not [one for one in imported(f"titanic/store/{engine}") if one.startswith(f"titanic.store.{other}")]


def test_only_the_stores_own_tools_know_its_engine() -> None:
    """Everybody else knows the interface of `titanic.store`, and what it opens."""
    engine = "titanic.store.lmdb"
    known = {
        source
        for package in ("titanic", *PIPELINE)
        for source in sources(package)
        if any(module.startswith(engine) for one in imports(source) for module in modules_of(*one))
    }
    assert {one for one in known if not one.startswith("titanic/store/")} == {"titanic/cli/check_backup.py"}
    assert {one for one in known if not one.startswith("titanic/store/lmdb/")} - {"titanic/cli/check_backup.py"} == {
        "titanic/store/engine_choice.py",
        "titanic/store/moving_engines.py",
    }


def test_the_stores_interface_loads_no_engine() -> None:
    program = "import sys, titanic.store; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not [module for module in done.stdout.split() if "lmdb" in module or "psycopg" in module]


def test_only_the_command_line_knows_click() -> None:
    shells = ("titanic/cli/", "data/titanic_data/cli/")
    assert all(source.startswith(shells) for source in importers("broker", "titanic", *PIPELINE, of="click"))


def test_no_client_knows_msgspec() -> None:
    """A client imports quickly: it loads nothing of it."""
    rooms = (
        "titanic/facts/",
        "titanic/pool/",
        "titanic/protocol/messages.py",
        "titanic/services/",
        "titanic/store/",
        "titanic/tasks/",
        "titanic/web/",
    )
    outside = {one for one in importers("broker", "titanic", of="msgspec") if not one.startswith(rooms)}
    assert outside == set()


def test_only_metrics_know_prometheus() -> None:
    """Who does not ask for figures does not wait for the import."""
    program = "import sys, titanic.cli.serve, titanic.server; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "prometheus_client" not in done.stdout.split()
    outside = {one for one in importers("broker", "titanic", of="prometheus_client") if "/metrics/" not in one}
    assert outside == set()


def test_titanic_uses_the_brokers_public_names() -> None:
    for source in sources("titanic"):
        used = {node.attr for node in nodes(source) if isinstance(node, ast.Attribute) and names_broker(node.value)}
        for module, name in imports(source):
            if module.split(".")[0] == "broker":
                assert module in PUBLIC, f"{source} imports {module}; only what `broker` itself exports is public"
                if module == "broker":
                    used |= {name} if name else set()
                else:
                    assert name in PUBLIC[module].__all__, f"{source} uses what {module} does not export"
        assert used <= set(broker.__all__), f"{source} uses what broker does not export"


def names_broker(node: ast.expr) -> bool:
    """Whether an expression is the module after `import broker`; it may not get another name."""
    return isinstance(node, ast.Name) and node.id == "broker"


def test_all_that_the_broker_exports_is_there() -> None:
    for package in PUBLIC.values():
        assert [name for name in package.__all__ if not hasattr(package, name)] == []


LAZY = ("broker/access", "broker/patterns", "titanic/cluster", "titanic/server", "titanic/store", "titanic/web")
"""Packages whose exports are loaded on first use, by modules of their own side."""


@pytest.mark.parametrize("package", [titanic, broker, *(import_module(one.replace("/", ".")) for one in LAZY)])
def test_a_package_exports_what_its_stub_declares(package: ModuleType) -> None:
    stub = list(imports(f"{package.__name__.replace('.', '/')}/__init__.pyi"))
    assert [name for _, name in stub] == package.__all__
    for module, name in stub:
        assert getattr(package, name or "") is getattr(import_module(module), name or ""), name
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'missing'"):
        _ = package.missing


def rooms() -> dict[str, list[str]]:
    """The source files of each folder."""
    found: dict[str, list[str]] = {}
    for package in ("broker", "titanic", *PIPELINE):
        for source in sources(package):
            found.setdefault(source.rpartition("/")[0], []).append(source)
    return found


def test_no_class_name_stands_twice_in_a_room() -> None:
    for room, files in rooms().items():
        names = [node.name for source in files for node in nodes(source) if isinstance(node, ast.ClassDef)]
        assert {name for name in names if names.count(name) > 1} == set(), (room, files)


def test_private_names_are_not_imported() -> None:
    for package in ("broker", "titanic", *PIPELINE):
        for source in sources(package):
            private = [name for _, name in imports(source) if name and name.startswith("_") and name != "__version__"]
            assert private == [], source


def test_nothing_is_imported_for_its_types_alone() -> None:
    """It would hide a cycle. One is worth it: without it programs that submit tasks load a store and a dispatcher."""
    found = [one for package in ("broker", "titanic") for one in sources(package)]
    assert [one for one in found if "TYPE_CHECKING" in (ROOT / one).read_text()] == ["titanic/tasks/app.py"]


def test_an_app_of_tasks_loads_no_server() -> None:
    program = "import sys, titanic.tasks; titanic.tasks.Tasks('tcp://127.0.0.1:5555'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    server = tuple(f"titanic.{one}" for one in ("commit", "dispatch", "services", "store"))
    assert not [module for module in done.stdout.split() if module.startswith(server)]


def test_packages_import_only_from_those_above_them_in_the_map() -> None:
    """The map is a table of CONTRIBUTING. Modules directly in `broker/` and `titanic/` are in no row."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| package | responsibility |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)/(\w+)/`", row.split("|")[1]) for row in table.splitlines()[2:]]
    place = {package: number for number, packages in enumerate(rows) for package in packages}
    upward = {
        (source, module)
        for source in [source for package in ("broker", "titanic") for source in sources(package)]
        for name in imports(source)
        for module in modules_of(*name)
        if (mine := place.get((source.split("/")[0], source.split("/")[1]))) is not None
        and place.get((*module.split("."), "", "")[:2], -1) > mine
    }
    assert upward == set()


def test_imports_have_no_cycle() -> None:
    """Imports in functions and lazy exports count, too."""
    found = [source for package in ("broker", "titanic") for source in sources(package)]
    found += [f"{package}/__init__.pyi" for package in LAZY]
    modules = {source.partition(".py")[0].removesuffix("/__init__").replace("/", "."): source for source in found}
    order = TopologicalSorter(
        {module: {one for name in imports(source) for one in modules_of(*name)} for module, source in modules.items()}
    )
    assert {*order.static_order()} >= {*modules}  # raises CycleError


def test_a_stranger_that_is_called_broker_is_named(tmp_path: Path) -> None:
    """A file of the user's own, or another project's package of that name."""
    (tmp_path / "broker.py").touch()
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import titanic", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    ours = Path(broker.__file__ or "")
    hides = f"another module 'broker', {tmp_path}/broker.py, hides the one of titanic-queue, {ours}; rename that file"
    assert f"ImportError: {hides}" in done.stderr
