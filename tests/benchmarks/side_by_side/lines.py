"""Counts the lines of the programs: code and imports, without blank lines and comments.

python tests/benchmarks/side_by_side/lines.py
"""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

HERE = Path(__file__).parent
LIBRARIES = ("titanic", "celery", "dramatiq", "rq", "huey", "taskiq")
PROGRAMS = ("web_hook", "thumbnail", "cron", "chain", "fan_out")
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines with anything but a comment on them."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return len(
        {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    )


def lines_of(library: str, program: str) -> int:
    """Of all files of a program: rq's cron has two."""
    return sum(code_lines(path.read_text(encoding="utf-8")) for path in (HERE / library).glob(f"{program}*.py"))


def table() -> str:
    rows = [["", *LIBRARIES], ["---", *["---:"] * len(LIBRARIES)]]
    for program in PROGRAMS:
        rows.append([program.replace("_", " "), *(str(lines_of(library, program)) for library in LIBRARIES)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table())
