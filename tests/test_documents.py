"""What documents name is there: files, folders, sections, and a line for each room in CONTRIBUTING's map."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from support.settings_documents import TOML, settings_file

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "titanic/README.md",
    "titanic/TUTORIAL.md",
    "titanic/LANGUAGES.md",
    "titanic/PROTOCOL.md",
    "titanic/tasks/FLOWS.md",
    "titanic/tasks/README.md",
    "titanic/taskiq/README.md",
    "titanic/celery/README.md",
    "titanic/SCHEDULES.md",
    "titanic/COOKBOOK.md",
    "broker/README.md",
    "broker/patterns/README.md",
    "data/README.md",
    "deploy/README.md",
    "deploy/NODES.md",
    "tests/benchmarks/README.md",
    "tests/benchmarks/side_by_side/README.md",
]
OF_USERS = {"manage.py", "tasks.py", "titanic.py", "broker.py", "shop.py", "manifest/"}
"""What readers have themselves."""

PATH = re.compile(r"`((?:\.?\w[\w.-]*/)*(?:[\w-]+\.py|\.?\w[\w.-]*/))`")
LINK = re.compile(r"\]\(([^)#\s:]*)(#[^)\s]*)?\)")


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def anchors(document: Path) -> set[str]:
    """What the headings of a page are called in links, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_and_folders_are_there(document: str) -> None:
    """A path begins at the root, at the document's own folder, at one of that folder's, or in tests/."""
    here = (ROOT / document).parent
    missing = {
        path
        for path in set(PATH.findall(text_of(document))) - OF_USERS
        if not any((start / path).exists() for start in (ROOT, here, ROOT / "tests", ROOT / "tests/titanic"))
        and not any(here.glob(f"*/{path}"))
        and ("/" in path or not any(here.rglob(path)))
    }
    assert missing == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for path, anchor in LINK.findall(text_of(document)):
        if path.startswith(("http", "/")) or (not path and not anchor):
            continue
        target = (ROOT / document).parent / path if path else ROOT / document
        assert target.exists(), path
        assert not anchor or anchor[1:] in anchors(target), path + anchor


def test_methods_that_are_named_are_there() -> None:
    sources = [path.read_text() for package in ("titanic", "broker") for path in (ROOT / package).rglob("*.py")]
    named = set(re.findall(r"`([A-Z]\w+)\.(\w+)`", text_of("CONTRIBUTING.md") + text_of("titanic/README.md")))
    assert len(named) > 5
    for owner, method in named:
        pattern = re.compile(rf"^class {owner}\b.*?^    (?:async )?def {method}\b", re.MULTILINE | re.DOTALL)
        assert any(pattern.search(source) for source in sources), f"{owner}.{method}"


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    wanted = chain(project["dependencies"], *project["optional-dependencies"].values())
    needed = {re.split(r"[\[>=;<]", one)[0] for one in wanted} - {"titanic-queue"}
    table = text_of("CONTRIBUTING.md").partition("| package | why |")[2].partition("\n\n")[0]
    packages = [row.split("|")[1].rpartition(":*")[2] for row in table.splitlines()[2:]]
    assert {name.strip() for names in packages for name in names.split(",")} == needed


def test_every_room_has_its_line() -> None:
    table = text_of("CONTRIBUTING.md").partition("| package | responsibility |")[2].partition("\n\n")[0]
    rooms = [path for row in table.splitlines()[2:] for path in re.findall(r"`([^`]+)`", row.split("|")[1])]
    packages = {
        f"{one.parent.relative_to(ROOT)}/" for top in ("broker", "titanic") for one in ROOT.glob(f"{top}/*/*.py")
    }
    assert packages <= set(rooms)
    assert [room for room in rooms if not (ROOT / room).is_dir()] == []
    assert len(rooms) == len(set(rooms))


def test_the_settings_file_is_made_of_the_declarations() -> None:
    assert TOML.read_text() == settings_file(), "run `python -m support.settings_documents` in tests/"
