"""What is in the wheel."""

from __future__ import annotations

import email
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from titanic.version import __version__

ROOT = Path(__file__).parents[2]
SCRIPTS = "[console_scripts]\ntitanic = titanic.entry:main\ntitanic-data = titanic_data.__main__:run\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.iterdir()
    assert file.name == f"titanic_queue-{__version__}-py3-none-any.whl"
    return ZipFile(file)


def test_its_packages(wheel: ZipFile) -> None:
    info = f"titanic_queue-{__version__}.dist-info"
    assert {name.split("/")[0] for name in wheel.namelist()} == {
        "titanic",
        "broker",
        "titanic_data",
        "pyspark_titanic",
        info,
    }
    others = {"titanic_data/py.typed", "pyspark_titanic/py.typed", "titanic_data/log4j2.properties"}
    assert {"titanic/py.typed", "broker/py.typed", f"{info}/licenses/LICENSE", *others} <= set(wheel.namelist())


def test_all_modules_are_in(wheel: ZipFile) -> None:
    roots = {"titanic": ROOT, "broker": ROOT, "titanic_data": ROOT / "data", "pyspark_titanic": ROOT / "data"}
    sources = {str(path.relative_to(root)) for name, root in roots.items() for path in (root / name).rglob("*.py")}
    assert {name for name in wheel.namelist() if name.endswith(".py")} == sources


def test_its_metadata(wheel: ZipFile) -> None:
    info = f"titanic_queue-{__version__}.dist-info"
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert metadata["Name"] == "titanic-queue"
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    needed = {line.split(">")[0] for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert needed == {"pyzmq", "lmdb", "click", "rich", "prometheus-client", "uuid6"}
    assert wheel.read(f"{info}/entry_points.txt").decode() == SCRIPTS
    wheel.close()
