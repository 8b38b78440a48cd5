"""Build a release into dist/.

    make release VERSION=1.2.3            LOCAL=1: for a trial; DEBIAN="bookworm trixie": for these releases of Debian

In a work tree beside this one, the version is written and the changelog cut; the source distribution is made there, and
from that all else, as anyone can: a wheel of pure Python, and a compiled one for each Python that is here or in one of
the releases of Debian. Each wheel is built twice, in different folders, and both must be equal; then it is installed
and executes a request. Besides: a Debian package for each of these releases, the SBOM of an installation, and
SHA256SUMS. Only when all of it is right, this tree gets the commit and the tag; after a trial it does not.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "release"
DIST = ROOT / "dist"
PACKAGES = "python3,python3-venv,python3-dev,gcc,libc6-dev,binutils,ca-certificates"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
TRY = """
set -e
cd "$(mktemp -d)"
export TITANIC_ENDPOINT="ipc://$PWD/socket"
titanic serve --store store --bind "$TITANIC_ENDPOINT" & server=$!
titanic work upper -- tr a-z A-Z & worker=$!
trap 'kill $worker $server; wait' EXIT
[ "$(titanic reply "$(titanic submit upper hello --timeout 60)" --wait 60)" = HELLO ]
"""
"""A first request and its reply, by what is installed."""


class ReleaseRefused(Exception):
    """There is no release, and why."""


class Builder(NamedTuple):
    """A Python that builds, on this machine or in a root file system."""

    name: str
    python: str
    root: Path | None = None

    def run(self, *command: str | Path, folder: Path, **env: str) -> str:
        """Run a command in a folder, both by their paths on this machine; its output. Raises ReleaseRefused."""
        words = [str(word) for word in command]
        if self.root is not None:
            begin = f"{self.root}/"
            words = [word.replace(begin, "/") for word in words]
            words = ["chroot", str(self.root), "env", "-C", f"{folder}/".replace(begin, "/"), *words]
            env = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"} | env
        return run(*words, folder=folder, **env)

    def environment(self, folder: Path, *packages: str) -> Path:
        """A virtual environment with packages; its programs."""
        self.run(self.python, "-m", "venv", folder, folder=folder.parent)
        pip = (folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        self.run(*pip, *packages, folder=folder)
        return folder / "bin"


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is being done, and then how long it took."""
    print(f"{what}: ", end="", flush=True)
    began = time.monotonic()
    try:
        yield
    finally:
        print(f"{time.monotonic() - began:.0f} s", flush=True)


def run(*command: str | Path, folder: Path = ROOT, **env: str) -> str:
    """Run a command; its output. Raises ReleaseRefused with what it said."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ | env)
    if done.returncode:
        raise ReleaseRefused(f"{' '.join(map(str, command))} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout.strip()


def check(version: str, *, local: bool) -> None:
    """Refuse what cannot be released."""
    if re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version) is None:
        raise ReleaseRefused(f"{version!r} is not a version; write MAJOR.MINOR.PATCH, as in VERSION=1.2.3")
    if changed := run("git", "status", "--porcelain"):
        raise ReleaseRefused(f"there are changes that are not committed:\n{changed}")
    if run("git", "tag", "--list", f"v{version}") or f"\n## {version} (2" in (ROOT / "CHANGELOG.md").read_text():
        raise ReleaseRefused(f"version {version} is there already; choose a higher one")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    addresses = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    if missing := [name for name, address in addresses.items() if not address and not local]:
        where = "[tool.hatch.metadata.hooks.custom] of pyproject.toml"
        raise ReleaseRefused(f"{', '.join(missing)}: empty in {where}; fill in, or make a trial build with LOCAL=1")


def cut(tree: Path, version: str) -> None:
    """Write the version, date the changelog's section, and commit both."""
    changes, place = tree / "CHANGELOG.md", tree / "titanic/version.py"
    heading = f"## {version} ({time.strftime('%Y-%m-%d')})"
    text, count = re.subn(r"^## .*\(unreleased\)$", heading, changes.read_text(), count=1, flags=re.MULTILINE)
    if not count:
        raise ReleaseRefused("CHANGELOG.md has no section '## VERSION (unreleased)'; add one with what has changed")
    changes.write_text(text)
    place.write_text(re.sub(r'(?<=^__version__ = )".*"', f'"{version}"', place.read_text(), flags=re.MULTILINE))
    run("git", "commit", "--quiet", "--all", "--message", f"Version {version}", folder=tree)


def builders(releases: list[str]) -> Iterator[Builder]:
    """Those that compile: of releases of Debian, then of this machine's Pythons that are not among these."""
    known = set[str]()
    for release in releases:
        root = debian(release)
        builder = Builder(release, "/usr/bin/python3", root)
        known.add(builder.run("/usr/bin/python3", "-c", "import sys; print(sys.version_info[:2])", folder=root))
        yield builder
    for minor in range(11, 30):
        if (python := shutil.which(f"python3.{minor}")) and f"(3, {minor})" not in known:
            header = "import sysconfig; print(sysconfig.get_path('include'))"
            try:
                headers = Path(run(python, "-c", header))
            except ReleaseRefused as error:  # of pyenv, which has the name but not this version
                print(f"no wheel for Python 3.{minor}: {error}")
                continue
            if (headers / "Python.h").exists():
                yield Builder(f"python3.{minor}", python)
            else:
                print(f"no wheel for Python 3.{minor}: {headers / 'Python.h'} is missing; install its headers")


def debian(release: str) -> Path:
    """The root file system of a release of Debian that builds; made once."""
    root = ROOT / "build" / "debian" / release
    if not root.exists():
        if os.geteuid() or shutil.which("debootstrap") is None:
            raise ReleaseRefused(
                f"{release}: this needs root and debootstrap; DEBIAN= builds only for this machine's Pythons"
            )
        new = root.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        # From where this system's packages come.
        form = ("apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)", "Created-By: Packages")
        mirror = next(line.split()[0] for line in run(*form).splitlines() if line.endswith("/debian/ main"))
        with step(f"{release}: root file system"):
            run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", release, new, mirror)
        new.rename(root)
    for path in (CERTIFICATES, Path("/etc/resolv.conf")):
        if path.exists():
            shutil.copy(path, root / path.relative_to("/"))
    return root


def build(builder: Builder, source: Path, *, pure: bool = False) -> Path:
    """A wheel that was built twice, from a source distribution; and in a root file system the Debian package."""
    work = (builder.root or WORK) / "work" / (f"{builder.name}-pure" if pure else builder.name)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tools = builder.environment(work / "tools", *project["optional-dependencies"]["build"], *project["dependencies"])
    env = {"TITANIC_PURE": "1"} if pure else {}

    def make(name: str) -> tuple[Path, Path]:
        with tarfile.open(source) as file:
            file.extractall(work / name, filter="data")
        (tree,) = (work / name).iterdir()
        command = (tools / "python", "-m", "build", "--no-isolation", "--wheel", "--outdir", work / f"{name}.out")
        builder.run(*command, tree, folder=tree, **env)
        (wheel,) = (work / f"{name}.out").iterdir()
        return tree, wheel

    with step(f"{builder.name}: {'pure' if pure else 'compiled'} wheel, twice"), ThreadPoolExecutor() as pool:
        (tree, built), (_, other) = pool.map(make, ("one", "two"))
    wheels = [built, other]
    if not pure:
        if "-none-any" in wheels[0].name:
            raise ReleaseRefused(f"{builder.name}: nothing was compiled; see what hatch_build.py needs")
        for wheel in wheels:
            command = (sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", wheel)
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            run(*command, "--wheel-dir", wheel.parent / "all", PATH=path)
        wheels = [next((wheel.parent / "all").iterdir()) for wheel in wheels]
    if digest(wheels[0]) != digest(wheels[1]):
        raise ReleaseRefused(f"two builds differ: {wheels[0]} and {wheels[1]}")
    if builder.root is not None:
        release = re.findall(r'^VERSION_ID="?(\d+)', (builder.root / "etc/os-release").read_text(), re.MULTILINE)
        words = (tree / "deploy/deb.sh", tools / "python", work / "deb", f"1~deb{release[0]}", built)
        with step(f"{builder.name}: Debian package"):
            builder.run(*words, folder=tree)
        for file in (work / "deb").iterdir():
            shutil.move(file, DIST / file.name)
    return Path(shutil.copy(wheels[0], DIST))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def attempt(builder: Builder, wheel: Path, version: str, commit: str) -> Path:
    """Install a wheel where nothing else is, and run it; its programs."""
    work = (builder.root or WORK) / "work" / f"try-{wheel.stem}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with step(f"{builder.name}: {wheel.name} installed, to the first reply"):
        installed = builder.environment(work / "venv", str(shutil.copy(wheel, work)))
        command = ("sh", "-c", f"PATH={installed}:$PATH\n{TRY}")
        builder.run(*command, folder=work)
    titanic = json.loads(builder.run(installed / "titanic", "version", "--json", folder=work))
    wanted = {"version": version, "commit": commit[:12], "build": "pure" if "-none-any" in wheel.name else "compiled"}
    if wanted != (said := {name: titanic[name] for name in wanted}):
        raise ReleaseRefused(f"{wheel.name}: it must be {wanted}, and says {said}")
    return installed


def installed_bill(programs: Path, version: str) -> dict[str, str]:
    """Write the SBOM of an installation; the version of each package there."""
    target = DIST / f"titanic-queue-{version}.cdx.json"
    options = ("environment", "--output-reproducible", "--output-file", target)
    run(sys.executable, "-m", "cyclonedx_py", *options, programs / "python")
    return {plain(one["name"]): one["version"] for one in json.loads(target.read_text())["components"]}


def check_bill(wheel: Path, there: dict[str, str]) -> None:
    """Compare the SBOM in a wheel with what its installation has."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from packaging.specifiers import SpecifierSet

    with ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith(".cdx.json")]
        text = file.read(name).decode()
    if fault := JsonStrictValidator(SchemaVersion.V1_7).validate_str(text):
        raise ReleaseRefused(f"{wheel.name}: {name} is no CycloneDX 1.7: {fault}")
    parts: list[dict[str, Any]] = json.loads(text)["components"]
    for part in parts:
        if bounds := part.get("versionRange", "").removeprefix("vers:pypi/").replace("|", ","):
            found = there.get(plain(part["name"]))
            if found is None or found not in SpecifierSet(bounds):
                raise ReleaseRefused(f"{wheel.name}: the SBOM requires {part['name']} {bounds}; installed is {found}")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def release(version: str, releases: list[str], *, local: bool) -> None:
    """Build all, and check it. Raises ReleaseRefused."""
    check(version, local=local)
    tree = WORK / "tree"
    run("git", "worktree", "prune")
    for folder in (WORK, DIST):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    run("git", "worktree", "add", "--quiet", "--force", "--detach", tree)
    try:
        cut(tree, version)
        commit = run("git", "rev-parse", "HEAD", folder=tree)
        stamp = run("git", "log", "-1", "--format=%ct", folder=tree)
        os.environ.update(SOURCE_DATE_EPOCH=stamp, PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1")
        # Before anything is built, so that a root that cannot be made is known at once.
        compilers = [] if os.environ.get("TITANIC_PURE") == "1" else [*builders(releases)]
        run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", DIST, folder=tree)
        (source,) = DIST.iterdir()
        here = Builder("here", sys.executable)
        wheel = build(here, source, pure=True)
        check_bill(wheel, installed_bill(attempt(here, wheel, version, commit), version))
        for builder in compilers:
            attempt(builder, build(builder, source), version, commit)
        run(sys.executable, "-m", "twine", "check", "--strict", *DIST.glob("*.whl"), source)
        sums = "".join(f"{digest(path)}  {path.name}\n" for path in sorted(DIST.iterdir()))
        (DIST / "SHA256SUMS").write_text(sums)
        if not local:
            run("git", "merge", "--quiet", "--ff-only", commit)
            run("git", "tag", "--annotate", "--message", f"Version {version}", f"v{version}")
    finally:
        run("git", "worktree", "remove", "--force", tree)
    print((DIST / "SHA256SUMS").read_text(), end="")
    if not local:
        print("Publish it: git push --follow-tags, twine upload dist/*.whl dist/*.tar.gz")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("version")
    parser.add_argument("--local", action="store_true", help="a trial: no commit and no tag; addresses may be empty")
    parser.add_argument("--debian", action="append", default=[], help="a release of Debian, by its code name")
    given = parser.parse_args()
    try:
        release(given.version, given.debian, local=given.local)
    except ReleaseRefused as refused:
        sys.exit(f"release: {refused}")


if __name__ == "__main__":
    main()
