"""Finds the app of MODULE:NAME, its services, and its source files."""

from __future__ import annotations

import re
import sys
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path

from broker import Handler
from titanic.errors import CallerError, TitanicError
from titanic.pool.core import ChildConfig
from titanic.tasks import Tasks
from titanic.util.text import quoted


def chosen(config: ChildConfig, services: dict[str, Handler]) -> dict[str, Handler]:
    """Return the services that `only` and `excluded` leave. Raises TitanicError for an unknown one, and if none is
    left."""
    for name in (*config.only, *config.excluded):
        if name not in services:
            fact = f"it has {', '.join(sorted(services))}"
            raise TitanicError(f"{config.target} has no service {name}", fact, "check --only and --except")
    left = {
        name: handler
        for name, handler in services.items()
        if name not in config.excluded and (not config.only or name in config.only)
    }
    if not left:
        raise TitanicError("no service is left to serve", "--except names all of them", "check --only and --except")
    return left


def load(target: str) -> Tasks:
    """The app that MODULE:NAME stands for; `app` if there is no name. Raises CallerError."""
    module_name, _, name = target.partition(":")
    if re.search(r"[^\w.]|^\.|^$", module_name) or (module_name.endswith(".py") and Path(module_name).is_file()):
        module_name = re.sub(r"[^\w]+", ".", module_name.removesuffix(".py")).strip(".") or "shop"
        raise CallerError(f"{quoted(target)} is not MODULE:APP", "", f"write {module_name}:{name or 'app'}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    _refuse_namesakes(Path(here))
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            fact = f"there is no module {error.name} in {here} or among the installed packages"
            raise CallerError(
                f"cannot import {module_name}", fact, "run this in its directory, or set PYTHONPATH"
            ) from None
        raise import_fault(module_name, error) from error
    except Exception as error:
        raise import_fault(module_name, error) from error
    except SystemExit as error:
        raise import_fault(module_name, error) from error
    found: object = module
    for part in (name or "app").split("."):
        found = getattr(found, part, None)
    if isinstance(found, Tasks):
        return found
    others = [name for name, value in vars(module).items() if isinstance(value, Tasks)]
    fact = "there is no such name" if found is None else f"it is {type(found).__name__}"
    advice = f"did you mean {module_name}:{others[0]}?" if others else "create one: app = Tasks(name=…)"
    raise CallerError(f"{module_name}:{name or 'app'} is not a titanic.tasks.Tasks", fact, advice)


OWN_MODULES = {"broker": "lazy_exports.py", "titanic": "entry.py"}
"""The packages of titanic-queue, and a file of each by which other copies are known."""


def _refuse_namesakes(folder: Path) -> None:
    """Raise CallerError for a module of the program's own that is called like one of titanic-queue: here it would get
    that one, and programs that start in the folder would get its own."""
    for path in _namesakes(folder):
        name = path.stem if path.parent == folder else path.parent.name
        if path.is_file() and not (path.parent / OWN_MODULES[name]).is_file():
            what = f"{path} has the name of a module of titanic-queue"
            raise CallerError(what, f"that is {sys.modules[name].__file__}", "rename yours")


def _namesakes(folder: Path) -> list[Path]:
    return [folder / path for name in OWN_MODULES for path in (f"{name}.py", f"{name}/__init__.py")]


def import_fault(module: str, error: BaseException) -> CallerError:
    """Where in its source an import has failed, and why."""
    steps = traceback.extract_tb(error.__traceback__)
    last = ([step for step in steps if is_own(step.filename)] or steps)[-1]  # what it called is not to blame
    where = f"{last.filename}:{last.lineno}"
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return CallerError(f"cannot import {module}", f"{type(error).__name__}: {text}", f"see {where}")


def loaded() -> list[str]:
    """The files of the modules that are loaded, without those of Python, of what is installed, and of this project."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return sorted({str(Path(name).absolute()) for name in files if isinstance(name, str) and is_own(name)})


def is_own(name: str) -> bool:
    """Whether a file is a source of the program: not of Python, of what is installed, or of this project."""
    path = Path(name)
    installed = path.is_relative_to(sys.base_prefix) or "site-packages" in path.parts
    return name.endswith(".py") and not installed and not _ours().intersection(path.parents)


@cache
def _ours() -> set[Path]:
    return {Path(sys.modules[name].__file__ or "").parent for name in ("titanic", "broker")}


def involved(target: str, error: BaseException | None) -> list[str]:
    """The files that may have to do with a MODULE:app that could not be imported."""
    path = Path(*target.partition(":")[0].split(".")).absolute()
    found = {str(path.with_suffix(".py")), str(path / "__init__.py"), *map(str, _namesakes(Path.cwd()))}
    if error is not None:
        found.update(frame.filename for frame in traceback.extract_tb(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename:
        found.add(error.filename)
    return sorted(name for name in found if not name.startswith("<"))
