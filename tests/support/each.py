"""Many cases in one test, which share its server, its store, or whatever else takes long to begin."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Test = Callable[..., None]


def each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, but in one test: one case after another, with the same fixtures. What fails says in
    which."""
    names = names.replace(",", " ").split() if isinstance(names, str) else names
    several = len(names) > 1

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for case in cases:
                try:
                    test(**fixtures, **dict(zip(names, case if several else [case], strict=True)))
                except BaseException as error:
                    error.add_note(f"the case of {', '.join(names)}: {case!r}")
                    raise

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
