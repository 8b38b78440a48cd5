"""Finds the app that a child is to work for."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path

from titanic.errors import CallerError
from titanic.pool.sources import is_own
from titanic.tasks import Tasks


def load(target: str) -> Tasks:
    """The app that MODULE:NAME stands for; `app` if there is no name. Raises CallerError."""
    module_name, _, name = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            fact = f"there is no module {error.name} in {here}, nor among what is installed"
            raise CallerError(
                f"cannot import {module_name}", fact, "start this where it is, or set PYTHONPATH"
            ) from None
        raise _fault(module_name, error) from error
    except Exception as error:
        raise _fault(module_name, error) from error
    except SystemExit as error:
        raise _fault(module_name, error) from error
    found: object = module
    for part in (name or "app").split("."):
        found = getattr(found, part, None)
    if isinstance(found, Tasks):
        return found
    others = [name for name, value in vars(module).items() if isinstance(value, Tasks)]
    fact = "it is not there" if found is None else f"it is {type(found).__name__}"
    advice = f"did you mean {module_name}:{others[0]}?" if others else "make one: app = Tasks(name=…)"
    raise CallerError(f"{module_name}:{name or 'app'} is no titanic.tasks.Tasks", fact, advice)


def _fault(module: str, error: BaseException) -> CallerError:
    """Where in its source an import has failed, and why."""
    steps = traceback.extract_tb(error.__traceback__)
    last = ([step for step in steps if is_own(step.filename)] or steps)[-1]  # what it called is not to blame
    where = f"{last.filename}:{last.lineno}"
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return CallerError(f"cannot import {module}", f"{type(error).__name__}: {text}", f"see {where}")
