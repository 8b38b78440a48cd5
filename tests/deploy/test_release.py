"""A release: what refuses it, and what it is made of."""

from __future__ import annotations

import email
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from email.message import Message
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
HOME = "https://queue.example/titanic"
ADDRESSES = {"home-page": HOME, "issues": f"{HOME}/issues", "security-contact": "mailto:security@queue.example"}


def run(*command: str | Path, folder: Path, **env: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ | env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def refusal(source: Path, *arguments: str, begun: str = "") -> str:
    command = [sys.executable, source / "deploy/release.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, re.sub(r"\d+ s\n", "", done.stdout)) == (1, begun)
    return done.stderr


def tool(source: Path) -> ModuleType:
    """release.py of a copy of the source."""
    spec = importlib.util.spec_from_file_location("release_of_titanic", source / "deploy/release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of this source as it is, whose owner has filled in the addresses."""
    copy = tmp_path / "source"
    run("git", "clone", "--quiet", ROOT, copy, folder=tmp_path)
    run("git", "config", "user.name", "Owner", folder=copy)
    run("git", "config", "user.email", "owner@queue.example", folder=copy)
    changed = run("git", "ls-files", "--modified", "--others", "--exclude-standard", folder=ROOT).splitlines()
    for name in changed:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    project = copy / "pyproject.toml"
    text = project.read_text()
    for name, address in ADDRESSES.items():
        text = text.replace(f'\n{name} = ""\n', f'\n{name} = "{address}"\n')
    project.write_text(text)
    run("git", "add", "--all", folder=copy)
    run("git", "commit", "--quiet", "--message", "Addresses", folder=copy)
    return copy


def metadata_of(wheel: Path) -> Message:
    with ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(file.read(name))


def as_installed(metadata: Message, folder: Path) -> Path:
    """An environment that knows of what a wheel requires, and of nothing else: of the hundreds of packages that tests
    need the SBOM takes half a minute. Its programs."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    (packages,) = folder.glob("lib/*/site-packages")
    required = [re.split("[<>=]", line)[0] for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    for path in Path(sysconfig.get_path("purelib")).glob("*.dist-info"):
        if path.name.split("-")[0].replace("_", "-") in required:
            (packages / path.name).symlink_to(path)
    return folder / "bin"


def test_what_is_refused(source: Path) -> None:
    for version in ("1.2", "v1.2.3", "1.02.3", "1.2.3.dev1", ""):
        assert refusal(source, version) == (
            f"release: {version!r} is not a version; write MAJOR.MINOR.PATCH, as in VERSION=1.2.3\n"
        )
    run("git", "tag", "v1.2.3", folder=source)
    assert "version 1.2.3 is there already" in refusal(source, "1.2.3")
    (source / "new.txt").touch()
    assert refusal(source, "1.2.4") == "release: there are changes that are not committed:\n?? new.txt\n"
    (source / "new.txt").unlink()
    project = source / "pyproject.toml"
    project.write_text(project.read_text().replace(ADDRESSES["issues"], ""))
    run("git", "commit", "--quiet", "--all", "--message", "No address", folder=source)
    assert refusal(source, "1.2.4").startswith("release: issues: empty in [tool.hatch.metadata.hooks.custom] of")
    assert "nosuch" in refusal(source, "1.2.4", "--local", "--debian", "nosuch", begun="nosuch: root file system: ")
    assert not [*(source / "dist").iterdir()]  # nothing was built before
    changes = source / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("(unreleased)", "(2026-01-01)"))
    run("git", "commit", "--quiet", "--all", "--message", "Dated", folder=source)
    assert "CHANGELOG.md has no section" in refusal(source, "1.2.4", "--local")
    assert len(run("git", "worktree", "list", folder=source).splitlines()) == 1


def test_a_wheel_says_where_it_comes_from_and_what_it_has(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "dist", source)
    run(*command, folder=tmp_path, TITANIC_PURE="1")
    (wheel,) = (tmp_path / "dist").iterdir()
    metadata = metadata_of(wheel)
    version = metadata["Version"]
    assert metadata.get_all("Project-URL") == [
        f"Home page, {HOME}",
        f"Issues, {HOME}/issues",
        "Security, mailto:security@queue.example",
    ]
    links = re.findall(r"\]\(([^)\s]+)\)", str(metadata.get_payload()))
    assert len(links) > 20
    assert [link for link in links if not re.match("https?://|#", link)] == []
    assert f"{HOME}/blob/v{version}/SECURITY.md" in links
    assert f"{HOME}/raw/v{version}/titanic/web/screenshots/overview-light.png" in links
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, folder=tmp_path)

    release, programs = tool(source), as_installed(metadata, tmp_path / "installed")
    monkeypatch.setattr(release, "DIST", tmp_path)
    there = release.installed_bill(programs, version)
    assert {"pyzmq", "lmdb", "click"} <= there.keys()
    assert json.loads((tmp_path / f"titanic-queue-{version}.cdx.json").read_text())["components"]
    release.check_bill(wheel, there)
    with ZipFile(wheel) as old, ZipFile(tmp_path / wheel.name, "w") as new:
        for one in old.infolist():
            new.writestr(one, old.read(one).replace(b"vers:pypi/>=3|<4", b"vers:pypi/>=2|<3"))
    with pytest.raises(release.ReleaseRefused, match=r"the SBOM requires lmdb >=2,<3; installed is 3\."):
        release.check_bill(tmp_path / wheel.name, there)


def test_pythons_that_cannot_build_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that are only a name, as of pyenv, and those without headers."""
    for name, script in (
        ("python3.12", "exit 127"),
        ("python3.13", "echo /nowhere"),
        ("python3.14", f"echo {tmp_path}"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [one.name for one in tool(ROOT).builders([])] == ["python3.14"]
    said = capsys.readouterr().out
    assert f"no wheel for Python 3.12: {tmp_path}/python3.12 -c" in said
    assert "no wheel for Python 3.13: /nowhere/Python.h is missing" in said


@pytest.mark.torture
@pytest.mark.skipif(shutil.which("lintian") is None, reason="needs lintian")
@pytest.mark.timeout(1800)
def test_a_debian_package_is_as_debian_wants_it(source: Path, tmp_path: Path) -> None:
    env = {"MYPYC_OPT_LEVEL": "0", "DPKG_DEB_COMPRESSOR_TYPE": "gzip"}
    run(source / "deploy/deb.sh", sys.executable, tmp_path / "deb", "1", folder=source, **env)
    (package,) = (tmp_path / "deb").iterdir()
    assert run("lintian", "--allow-root", "--fail-on", "error,warning", package, folder=tmp_path) == ""


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_a_release(source: Path) -> None:
    """Its wheels are equal when they are built again, and execute a request where they are installed: release.py would
    refuse them."""
    command = (sys.executable, source / "deploy/release.py")
    run(*command, "7.8.9", folder=source, MYPYC_OPT_LEVEL="0")
    dist = source / "dist"
    run("sha256sum", "--check", "--strict", "SHA256SUMS", folder=dist)
    wheels = [path.name for path in dist.glob("*.whl")]
    assert "titanic_queue-7.8.9-py3-none-any.whl" in wheels
    assert any(re.search(r"-cp311-cp311-manylinux\w+\.", name) for name in wheels)
    assert {metadata_of(dist / name)["Version"] for name in wheels} == {"7.8.9"}
    assert run("git", "describe", folder=source) == "v7.8.9"
    assert run("git", "log", "-1", "--format=%s", folder=source) == "Version 7.8.9"
    assert run("git", "status", "--porcelain", folder=source) == ""
    assert re.search(r"^## 7\.8\.9 \(20\d\d-\d\d-\d\d\)$", (source / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert "version 7.8.9 is there already" in refusal(source, "7.8.9")
