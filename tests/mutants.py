"""Whether the tests notice: small faults are put into the source, one at a time, and the tests of that part are run.

    python tests/mutants.py run [--sample N] [--seed N] [--jobs N] [PATH…]    N of each part, or all
    python tests/mutants.py sum                                              what was tried, noticed, survived
    python tests/mutants.py show MUTANT                                      what was changed

They run in copies of the tree below `.mutants`, where the results are kept, too. What was tried with the same source is
not tried again: a run can be ended and begun anew.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".mutants"
RESULTS = PLACE / "results.jsonl"
SECONDS = 900
"""What the tests of one mutant may take, on a busy machine, too."""

TESTS = {
    "titanic/store/**/*.py": "titanic/store/test_(?!.*(crash|disk|soak|readers))",
    "titanic/util/ids.py": "titanic/util/test_ids",
    "titanic/commit/*.py": "titanic/(commit/|facts/test_facts)",
    "titanic/dispatch/*.py": "titanic/(dispatch/|server/test_(standalone|dispatch|jobs|attempt_limit|stop|why))",
    "titanic/cluster/*.py": "titanic/(cluster/|server/test_(draining|news|service_settings))",
    "titanic/pool/*.py": "titanic/pool/test_(?!.*chaos)",
    "broker/core/*.py": "broker/((core|io)/test_(?!connection_count)|test_reply)",
    "broker/zmtp/*.py": "broker/(zmtp/|test_malformed_connections)",
    "broker/io/*.py": "broker/(io/test_(?!connection_count)|test_(access|malformed_connections|hostile|end_to_end))",
}
"""What is changed, and the tests that are to notice: quick ones of the same part."""

SLOW = "test_the_file_never_exceeds or test_a_broker_that_has_to_be_asked"
OPTIONS = [
    "-x",
    "-q",
    "--no-header",
    "--tb=no",
    "-p",
    "no:xdist",
    "-p",
    "no:cacheprovider",
    "--hypothesis-profile=ci",
    "--timeout=60",
]

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv}


class Mutant(NamedTuple):
    """One change: the bytes from `start` to `end` of a file become `text`."""

    path: str
    line: int
    start: int
    end: int
    text: str
    old: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}:{hashlib.sha256(f'{self.start} {self.text}'.encode()).hexdigest()[:6]}"

    def __str__(self) -> str:
        return f"{self.name}  {' '.join(self.old.split())[:70]}  →  {self.text[:70]}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What may become of a node: which part of it is replaced, and by what."""
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in COMPARISONS:
            yield node, f"({ast.unparse(ast.Compare(left, [COMPARISONS[type(op)]()], [right]))})"
        case ast.BoolOp(op, values):
            other: ast.boolop = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC:
            yield node, f"({ast.unparse(ast.BinOp(left, ARITHMETIC[type(op)](), right))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield node, f"bool({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield node, str(not value)
        case ast.Constant(int() | float() as value):
            yield node, f"({value + 1})"
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield test, "(False)"
            if not isinstance(node, ast.While):
                yield test, "(True)"
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield value, "(None)"
        case ast.Raise() | ast.Expr(ast.Call()) | ast.Assign() | ast.AugAssign() | ast.Delete() | ast.Continue():
            yield node, "pass"


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """It and all that it is made of; not what is in texts, where Python 3.11 does not know the places."""
    yield node
    if not isinstance(node, ast.JoinedStr):
        for each in ast.iter_child_nodes(node):
            yield from inside(each)


def mutants(path: str) -> list[Mutant]:
    """All of a file, in their order. What is outside of functions is left alone: it is checked by its use."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = {}
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for node in [node for function in functions for statement in function.body for node in inside(statement)]:
        for part, text in changes(node):
            assert isinstance(part, ast.expr | ast.stmt)
            start, end = (starts[line - 1] + column for line, column in (
                (part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)))  # fmt: skip
            mutant = Mutant(path, part.lineno, start, end, text, source[start:end].decode())
            if not mutant.old.startswith("log."):
                found[mutant.name] = mutant
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.name))


def try_tests(copy: Path, part: str) -> str:
    """`survived` when all tests pass, `noticed` when one fails or they do not end."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    files = [str(path) for path in sorted((copy / "tests").rglob("test_*.py")) if re.search(TESTS[part], str(path))]
    command = ["nice", sys.executable, "-m", "pytest", *OPTIONS, "-k", f"not ({SLOW})", *files]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=copy, env=environment, start_new_session=True, **quiet) as process:  # type: ignore[call-overload]
        try:
            return "noticed" if process.wait(SECONDS) else "survived"
        except subprocess.TimeoutExpired:
            return "noticed"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what the tests have started


def digest(path: str) -> str:
    return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()[:12] if (ROOT / path).exists() else ""


def known() -> dict[str, dict[str, str]]:
    """Results by mutant. Those of another source do not count."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    return {row["mutant"]: row for row in rows if row["source"] == digest(row["mutant"].split(":")[0])}


def run(sample: int, seed: int, jobs: int, paths: list[str]) -> None:
    dice, before = random.Random(seed), known()
    chosen: list[tuple[str, Mutant]] = []
    for part in TESTS:
        files = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(part))]
        several = [mutant for path in files if not paths or path in paths for mutant in mutants(path)]
        chosen += [(part, each) for each in (dice.sample(several, min(sample, len(several))) if sample else several)]
    dice.shuffle(chosen)
    left = [each for each in chosen if each[1].name not in before]
    print(f"{len(chosen)} mutants, {len(left)} of them not tried yet", flush=True)
    copies: queue.Queue[Path] = queue.Queue()
    for copy in (PLACE / f"tree{number}" for number in range(jobs)):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "dist"))  # with what is compiled: quicker
        copies.put(copy)

    def attempt(part: str, mutant: Mutant | None) -> str:
        copy = copies.get()
        file = copy / (mutant.path if mutant else "README.md")
        source = file.read_bytes()
        try:
            file.write_bytes(mutant.apply(source) if mutant else source)
            became = try_tests(copy, part)
        finally:
            file.write_bytes(source)
            copies.put(copy)
        if mutant:
            row = {"mutant": mutant.name, "source": digest(mutant.path), "became": became, "what": str(mutant)}
            with RESULTS.open("a") as results:
                results.write(json.dumps(row) + "\n")
            print(f"{became:>9}  {mutant}", flush=True)
        return became

    with ThreadPoolExecutor(jobs) as pool:
        parts = {part for part, _ in left}
        if {*pool.map(attempt, parts, [None] * len(parts))} - {"survived"}:
            sys.exit("mutants: there are tests that fail without any change; run them and see")
        for future in [pool.submit(attempt, *each) for each in left]:
            future.result()


def summary() -> None:
    """What became of them, by file, and who survived."""
    rows = known().values()
    print(f"{'tried':>7} {'noticed':>9} {'survived':>9}")
    for path in [*sorted({row["mutant"].split(":")[0] for row in rows}), ""]:
        became = Counter(row["became"] for row in rows if row["mutant"].startswith(path))
        print(f"{became.total():>7} {became['noticed']:>9} {became['survived']:>9}  {path or 'all'}")
    for row in sorted(rows, key=lambda row: row["mutant"]):
        if row["became"] == "survived":
            print(row["what"])


def show(name: str) -> None:
    """The change as a diff."""
    path = name.split(":")[0]
    (mutant,) = [each for each in mutants(path) if each.name == name]
    source = (ROOT / path).read_bytes()
    both = (text.decode().splitlines(keepends=True) for text in (source, mutant.apply(source)))
    sys.stdout.writelines(difflib.unified_diff(*both, path, name, n=8))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("do", choices=["run", "sum", "show"])
    parser.add_argument("what", nargs="*")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_intermixed_args()
    PLACE.mkdir(exist_ok=True)
    if given.do == "show":
        show(*given.what)
    else:
        if given.do == "run":
            run(given.sample, given.seed, given.jobs, given.what)
        summary()
