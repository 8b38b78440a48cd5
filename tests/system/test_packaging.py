"""What is in the wheel."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.made_programs import alone, builder, shared_folder

from titanic.version import __version__

ROOT = Path(__file__).parents[2]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
SCRIPTS = "[console_scripts]\ntitanic = titanic.entry:main\ntitanic-data = titanic_data.__main__:run\n"


def build(python: Path, folder: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel of the source; where it is, and what was said. Not optimised: that takes its time."""
    command = [python, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    env = {"MYPYC_OPT_LEVEL": "0", **os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("*.whl")
    return file, done.stdout + done.stderr


@pytest.fixture
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builder(tmp_path_factory)


@pytest.fixture
def compiled(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Path:
    """Built once, by the first process of this run that wants it."""
    folder = shared_folder(tmp_path_factory, "wheel")
    with alone(folder):
        found = [*folder.glob("*.whl")]
        return found[0] if found else build(python, folder)[0]


@pytest.fixture
def wheel(compiled: Path) -> Iterator[ZipFile]:
    with ZipFile(compiled) as file:
        yield file


def test_its_packages(wheel: ZipFile) -> None:
    info = f"titanic_queue-{__version__}.dist-info"
    assert {name.split("/")[0] for name in wheel.namelist()} == {
        "titanic",
        "broker",
        "titanic_data",
        "pyspark_titanic",
        info,
        f"titanic__mypyc{SUFFIX}",
        f"broker__mypyc{SUFFIX}",
    }
    others = {"titanic_data/py.typed", "pyspark_titanic/py.typed", "titanic_data/log4j2.properties"}
    assert {"titanic/py.typed", "broker/py.typed", f"{info}/licenses/LICENSE", *others} <= set(wheel.namelist())


def test_all_modules_are_in(wheel: ZipFile) -> None:
    roots = {"titanic": ROOT, "broker": ROOT, "titanic_data": ROOT / "data", "pyspark_titanic": ROOT / "data"}
    sources = {str(path.relative_to(root)) for name, root in roots.items() for path in (root / name).rglob("*.py")}
    assert {name for name in wheel.namelist() if name.endswith(".py")} == sources


def test_what_is_compiled_is_in(compiled: Path, wheel: ZipFile) -> None:
    """Beside its source. Only for this Python, and this kind of machine."""
    found = {name.removesuffix(SUFFIX) for name in wheel.namelist() if name.endswith(".so") and "/" in name}
    assert {f"{name}.py" for name in found} <= set(wheel.namelist())
    assert {"broker/core/broker", "titanic/dispatch/core", "titanic/store/lmdb/request_record"} <= found
    assert not [name for name in found if name.split("/")[0] not in ("broker", "titanic")]
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"titanic_queue-{re.escape(__version__)}-{tag}-{tag}-linux_\w+\.whl", compiled.name)


def test_compiled_or_pure_when_it_runs(wheel: ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    ours = "[m.__file__ for name, m in sys.modules.items() if name.startswith(('titanic', 'broker')) and m.__file__]"
    loaded = f"import sys, titanic.server.server; print(*{ours})"
    for pure, build, suffixes in (("", "compiled", {".py", ".so"}), ("1", "pure Python", {".py"})):
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1", "TITANIC_PURE": pure}
        said = [
            subprocess.run([sys.executable, *one], capture_output=True, text=True, env=env, timeout=60, check=True)
            for one in (["-m", "titanic", "--version"], ["-c", loaded])
        ]
        assert re.fullmatch(rf"titanic, version {re.escape(__version__)} \({build}, [0-9a-f]{{12}}\)\n", said[0].stdout)
        files = [Path(name) for name in said[1].stdout.split()]
        assert {file.suffix for file in files} == suffixes
        assert all(file.is_relative_to(tmp_path) for file in files)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"TITANIC_PURE": "1"}, "TITANIC_PURE=1 is set"),
        ({"CC": "/no/such/compiler"}, "there is no C compiler (/no/such/compiler)"),
    ],
)
def test_a_wheel_of_pure_python(environment: dict[str, str], reason: str, python: Path, tmp_path: Path) -> None:
    file, said = build(python, tmp_path, **environment)
    assert file.name == f"titanic_queue-{__version__}-py3-none-any.whl"
    assert f"titanic-queue is built as pure Python: {reason}\n" in said
    with ZipFile(file) as wheel:
        assert not [name for name in wheel.namelist() if name.endswith(".so")]


def test_its_metadata(wheel: ZipFile) -> None:
    info = f"titanic_queue-{__version__}.dist-info"
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert metadata["Name"] == "titanic-queue"
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    needed = {re.split("[<>=]", line)[0] for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert needed == {"pyzmq", "lmdb", "click", "msgspec", "rich", "prometheus-client", "uuid6", "pynacl"}
    assert wheel.read(f"{info}/entry_points.txt").decode() == SCRIPTS


def test_its_libraries_name_no_folder_of_the_builder(wheel: ZipFile, tmp_path: Path) -> None:
    for name in wheel.namelist():
        if "mypyc" in name:
            said = subprocess.run(
                ["readelf", "-dS", wheel.extract(name, tmp_path)], capture_output=True, text=True, check=True
            )
            assert "NEEDED" in said.stdout
            assert not re.search(r"RUNPATH|RPATH|\.symtab|\.debug", said.stdout)
            assert str(ROOT).encode() not in wheel.read(name)
