"""MODULE:app: what is found, and what is said when it is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.waiting import PATIENCE

from titanic.errors import CallerError, TitanicError
from titanic.pool.core import ChildConfig
from titanic.pool.loading import OWN_MODULES, chosen, involved, load, loaded
from titanic.pool.pool import Sources

APP = "from titanic.tasks import Tasks\napp = Tasks(name='found')\nclass inner:\n    other = Tasks(name='inner')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("loading_shop", "loading_broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_it_is_found_here(folder: Path) -> None:
    (folder / "loading_shop.py").write_text(APP)
    assert load("loading_shop:app").name == load("loading_shop").name == "found"
    assert load("loading_shop:inner.other").name == "inner"
    assert str(folder / "loading_shop.py") in loaded()
    assert not [name for name in loaded() if "site-packages" in name or "/titanic/tasks/app.py" in name]
    with pytest.raises(CallerError, match=r"loading_shop:inner is not a .*; it is type; did you mean loading_shop:app"):
        load("loading_shop:inner")
    with pytest.raises(CallerError, match=r"loading_shop:nothing is not a .*; there is no such name"):
        load("loading_shop:nothing")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1 / 0\n", r"ZeroDivisionError: division by zero; see .*loading_broken\.py:1$"),
        ("\ndef f(:\n", r"SyntaxError: invalid syntax; see .*loading_broken\.py:2$"),
        ("import no_such_thing\n", r"ModuleNotFoundError: No module named 'no_such_thing'; see .*broken\.py:1$"),
        (
            "from titanic.tasks import Tasks\nimport json\napp = Tasks()\n\n\ndef f(): return json.loads('{')\n\nf()\n",
            r"JSONDecodeError: .*; see .*loading_broken\.py:6$",
        ),
        (
            "from titanic.tasks import Tasks\napp = Tasks()\n@app.task\ndef f(x: object()): ...\n",
            r"CallerError: f: .*; see .*loading_broken\.py:3$",
        ),
        ("raise SystemExit(3)\n", r"SystemExit: 3"),
        ("app = 5\n", r"loading_broken:app is not a titanic\.tasks\.Tasks; it is int; create one"),
    ],
)
def test_what_cannot_be_imported(folder: Path, text: str, fault: str) -> None:
    (folder / "loading_broken.py").write_text(text)
    with pytest.raises(CallerError, match=fault) as caught:
        load("loading_broken:app")
    assert str(folder / "loading_broken.py") in involved("loading_broken:app", caught.value.__cause__)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"only": ["shop.none"]}, "^shop:app has no service shop.none; it has shop.a, shop.b; check --only and"),
        ({"excluded": ["shop.none"]}, "^shop:app has no service shop.none; it has shop.a, shop.b; check --only and"),
        ({"only": ["shop.a"], "excluded": ["shop.a"]}, "^no service is left to serve; --except names all of them;"),
    ],
)
def test_services_that_it_does_not_have(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(TitanicError, match=fault):
        chosen(ChildConfig("shop:app", **options), dict.fromkeys(("shop.b", "shop.a"), list))


@pytest.mark.parametrize("name", ["broker.py", "titanic.py", "broker/__init__.py", "titanic/__init__.py"])
def test_a_module_that_is_called_like_one_of_ours(folder: Path, name: str) -> None:
    (folder / "loading_shop.py").write_text(APP)
    theirs = folder / name
    theirs.parent.mkdir(exist_ok=True)
    theirs.touch()
    ours = sys.modules[name.removesuffix("/__init__.py").removesuffix(".py")].__file__
    what = f"{theirs} has the name of a module of titanic-queue; that is {ours}; rename yours"
    with pytest.raises(CallerError) as caught:
        load("loading_shop:app")
    assert str(caught.value) == what
    assert str(theirs) in involved("loading_shop:app", None)  # to be tried again when it is renamed
    if name != "titanic.py":
        return
    command = [sys.executable, "-P", "-m", "titanic", "worker", "loading_shop:app", "--endpoint", "tcp://127.0.0.1:1"]
    worker = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (worker.returncode, what in worker.stderr) == (2, True)


def test_another_copy_of_ours_is_none(folder: Path) -> None:
    (folder / "loading_shop.py").write_text(APP)
    for name in OWN_MODULES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        (folder / name / OWN_MODULES[name]).touch()
    assert load("loading_shop:app").name == "found"


@pytest.mark.parametrize("target", ["no_such_module:app", "no_such_module.inner:app"])
def test_what_is_not_there(target: str) -> None:
    with pytest.raises(CallerError, match=r"there is no module no_such_module in .*; run this in its directory"):
        load(target)


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        ("loading_shop.py", "loading_shop:app"),
        ("loading_shop.py:inner.other", "loading_shop:inner.other"),
        ("./loading_shop:app", "loading_shop:app"),
        ("inner/shop", "inner.shop:app"),
        ("", "shop:app"),
    ],
)
def test_a_file_is_no_module(folder: Path, target: str, advice: str) -> None:
    (folder / "loading_shop.py").write_text(APP)
    with pytest.raises(CallerError, match=f"^'{re.escape(target)}' is not MODULE:APP; write {advice}$"):
        load(target)


def test_sources_are_watched(folder: Path) -> None:
    one, absent = folder / "one.py", folder / "absent.py"
    one.write_text("1")
    sources = Sources()
    sources.watch([str(one), str(absent)])
    assert sources.changed() == ""
    one.write_text("22")
    sources.watch([str(one)])  # a child that starts again tells it once more
    assert sources.changed() == str(one)
    assert sources.changed() == ""
    absent.write_text("")
    assert sources.changed() == str(absent)
    one.unlink()
    assert sources.changed() == str(one)
