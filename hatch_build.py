"""Compiles the modules that pyproject.toml names, for a wheel. mypyc makes C of them as they are.

A compiled module stands beside its source in the wheel; with TITANIC_PURE=1 Python loads the source, by
broker/lazy_exports.py. Without a C compiler, and with TITANIC_PURE=1 at build time, the wheel is pure Python. So is an
editable install.

    python hatch_build.py FOLDER    a copy of the packages in FOLDER, with the compiled modules: for the tests

What is compiled stays in build/ and is used again until a source changes. MYPYC_OPT_LEVEL (0 … 3) says how hard the C
compiler tries; at 0 it needs half the time.

A test that fails only on the compiled build: a patched method, function or module; `is` between tuples; a generator
expression that must be lazy (mypyc builds a list); a function assigned as a method; `raise … from`, which sets no
`__cause__`; a signal handler, which only interpreted code runs; a class below a compiled one; a double of a compiled
class; an int where a float is declared, which becomes 3.0; a call in a slice of a memoryview, which is made twice.

The addresses in pyproject.toml become the project's URLs, and with a home page the links of README.md lead to it. Each
wheel has an SBOM in .dist-info/sboms: what it contains besides Titanic, and what it requires.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent
PACKAGES = ("broker", "titanic")
"""Each is compiled into one library; the modules themselves are small."""
LEVEL = os.environ.get("MYPYC_OPT_LEVEL", "2")


class AddressHook(MetadataHookInterface):
    """Fills in what depends on where the project is at home."""

    def update(self, metadata: dict[str, Any]) -> None:
        home, files = self.config["home-page"], self.config["files"]
        addresses = {"Home page": home, "Issues": self.config["issues"], "Security": self.config["security-contact"]}
        metadata["urls"] = {name: address for name, address in addresses.items() if address}
        text = (ROOT / "README.md").read_text()
        if home:
            version = runpy.run_path(str(ROOT / "titanic/version.py"))["__version__"]
            text = re.sub(
                r"\]\((?![a-z]+:|#)([^)\s]+)\)",
                lambda link: f"]({_address(files, home=home, version=version, path=link[1])})",
                text,
            )
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _address(files: str, *, path: str, **parts: str) -> str:
    """Where a file of the repository can be read; a picture as it is, not on a page."""
    address = files.format(path=path, **parts)
    return address.replace("/blob/", "/raw/") if path.endswith((".png", ".svg")) else address


class CompileHook(BuildHookInterface[Any]):
    """Adds the commit, and to a wheel the SBOM and the compiled modules."""

    def dependencies(self) -> list[str]:
        """What only a build needs that compiles. Titanic's own dependencies are among it for their types."""
        return [] if _obstacle() else ["mypy[mypyc]>=1.13", *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if (commit := _commit()) is not None:
            build_data["force_include"][str(commit)] = "titanic/commit.txt"
        if self.target_name != "wheel":
            return
        sbom = ROOT / "build" / "titanic-queue.cdx.json"
        sbom.parent.mkdir(exist_ok=True)
        build_data["sbom_files"] = [str(sbom)]
        if obstacle := _obstacle():
            self.app.display_warning(f"titanic-queue is built as pure Python: {obstacle}")
            sbom.write_text(self._bill(compiled=False))
            return
        done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
        if done.returncode:
            self.app.display_warning(f"{done.stdout}{done.stderr}\ntitanic-queue is built as pure Python: mypyc failed")
            sbom.write_text(self._bill(compiled=False))
            return
        sbom.write_text(self._bill(compiled=True))
        modules = _built()
        build_data["force_include"] |= {str(modules / path): str(path) for path in _libraries(modules)}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _bill(self, *, compiled: bool) -> str:
        """The SBOM, in CycloneDX 1.7: the same for each build of a version."""
        name, version = self.metadata.core.name, self.metadata.version
        parts = [_required(one) for one in sorted(self.metadata.core.dependencies)]
        if compiled:
            from mypy.version import __version__ as mypy

            part = {"type": "library", "bom-ref": "mypy", "name": "mypy", "version": mypy, "scope": "required"}
            part |= {"description": "mypyc's run-time library, within the compiled modules"}
            parts.append(part | {"purl": f"pkg:pypi/mypy@{mypy}", "licenses": [{"license": {"id": "MIT"}}]})
        root = {
            "type": "library",
            "bom-ref": name,
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
        }
        document = {
            "bomFormat": "CycloneDX",
            "specVersion": "1.7",
            "version": 1,
            "metadata": {
                "component": root | {"licenses": [{"license": {"id": self.metadata.core.license_expression}}]}
            },
            "components": parts,
            "dependencies": [{"ref": name, "dependsOn": [part["bom-ref"] for part in parts]}],
        }
        return json.dumps(document, indent=2) + "\n"


def _required(requirement: str) -> dict[str, Any]:
    """A component that is no part of the wheel, but must be there."""
    name, bounds = re.fullmatch(r"([\w.-]+)\s*(.*)", requirement).groups()  # type: ignore[union-attr]
    found = {"type": "library", "bom-ref": name, "name": name, "purl": f"pkg:pypi/{name}", "scope": "required"}
    return found | {
        "isExternal": True,
        "versionRange": "vers:pypi/" + "|".join(sorted(bounds.split(","), reverse=True)),
    }


def _commit() -> Path | None:
    """A file with the commit of this checkout, for `titanic --version`; None when it is none."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    if done.returncode or not (ROOT / ".git").exists():
        return None
    (ROOT / "build").mkdir(exist_ok=True)
    path = ROOT / "build" / "commit.txt"
    path.write_text(done.stdout)
    return path


def _obstacle() -> str | None:
    """Why nothing can be compiled here, or shall be."""
    if os.environ.get("TITANIC_PURE") == "1":
        return "TITANIC_PURE=1 is set"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        return f"there is no {header}; on Debian: apt-get install python3-dev"
    return None


def _built() -> Path:
    """Where the compiled modules are."""
    return ROOT / "build" / f"compiled-{sys.implementation.cache_tag}-{LEVEL}" / "lib"


def _libraries(folder: Path) -> list[Path]:
    """The compiled modules in a folder."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*.so"))


def _compile() -> None:
    """Compile, unless it is done already. One process at a time."""
    folder = _built().parent
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = folder / "state"
        wanted = _state()
        if state.exists() and state.read_text() == wanted:
            return
        state.unlink(missing_ok=True)
        shutil.rmtree(_built(), ignore_errors=True)
        _run_mypyc(folder)
        state.write_text(wanted)


def _state() -> str:
    """A hash of all that a compiled module depends on."""
    from mypy.version import __version__ as mypy

    state = hashlib.sha256(f"{sys.version} {mypy}".encode())
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py*") if path.suffix != ".pyc"]
    for path in sorted([Path(__file__), ROOT / "pyproject.toml", *sources]):
        state.update(f"{path}".encode() + path.read_bytes())
    return state.hexdigest()


def translate(folder: Path) -> list[Any]:
    """Extensions of C, made of the modules in a folder. Exits when mypy finds an error."""
    import mypyc
    from mypyc.build import mypycify

    os.chdir(ROOT)  # the modules' names follow from their paths
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    found = {path for pattern in hook["custom"]["modules"] for path in ROOT.glob(pattern)}
    modules = sorted(str(path.relative_to(ROOT)) for path in found if path.name != "__init__.py")
    groups: list[tuple[list[str], str | None]]
    groups = [([module for module in modules if module.startswith(f"{name}/")], name) for name in PACKAGES]
    # What is compiled leads to modules that are not, and that need libraries of extras, which a build does not have.
    options = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
    options.append(f"--cache-dir={folder / 'mypy'}")
    extensions = mypycify(
        [*options, *modules], opt_level=LEVEL, debug_level="0", separate=groups, target_dir=str(folder / "c")
    )
    for extension in extensions:
        # mypyc puts a _ before the names of attributes, and `_thread` becomes a word of C.
        extension.define_macros.append(("__thread", "attribute_thread"))
        # In generated C, the check takes longer than all the rest of an unoptimised build.
        extension.extra_compile_args.append("-Wno-misleading-indentation")
        # What fails an assertion names its file: without the builder's folders, so that all builds are equal.
        for place in (folder, Path(mypyc.__file__).parent):
            extension.extra_compile_args.append(f"-ffile-prefix-map={place}=.")
    return extensions


def _run_mypyc(folder: Path) -> None:
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    extensions = translate(folder)
    command = build_ext(Distribution({"ext_modules": extensions}))
    command.build_lib, command.build_temp = str(_built()), str(folder / "objects")
    command.parallel = os.cpu_count()
    os.environ["LDSHARED"] = _linker(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    command.ensure_finalized()
    command.run()


def _linker(command: str) -> str:
    """What links a module: that of this Python, without the folders of the machine where it was built, which a library
    would name as places to look for others; and without symbols for debuggers."""
    return " ".join([word for word in command.split() if not word.startswith(("-L", "-Wl,-rpath"))] + ["-s"])


def main() -> None:
    """Compile; with a folder, put a copy of both packages there that has the compiled modules."""
    if obstacle := _obstacle():
        sys.exit(f"nothing is compiled: {obstacle}")
    _compile()
    for name in sys.argv[1:]:
        folder = Path(name)
        for package in PACKAGES:
            shutil.rmtree(folder / package, ignore_errors=True)
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        for path in _libraries(_built()):
            shutil.copy(_built() / path, folder / path)


if __name__ == "__main__":
    main()
