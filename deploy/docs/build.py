"""Build the documentation site from the repository's own pages, without a network.

    python deploy/docs/build.py OUTDIR

`assemble` writes mkdocs.yml and what it expects into build/: the pages of PAGES with their links changed to the site's
paths, the files that they link to, and the generated reference (command line, settings, metrics, log events, Python).
So a page stands once, where its subject is, and any generator that reads mkdocs.yml can build the site. OUTDIR gets
the site, each page as Markdown beside its HTML, and llms.txt, the list of pages for programs.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SETTINGS = ROOT / "build" / "mkdocs.yml"
SOURCE = ROOT / "build" / "docs"
"""Where these settings look for the pages."""

PAGES = {
    "README.md": "index.md",
    "titanic/TUTORIAL.md": "tutorial.md",
    "titanic/COOKBOOK.md": "how-to/cookbook.md",
    "titanic/tasks/README.md": "how-to/tasks.md",
    "titanic/tasks/FLOWS.md": "how-to/workflows.md",
    "titanic/SCHEDULES.md": "how-to/schedules.md",
    "titanic/LANGUAGES.md": "how-to/languages.md",
    "titanic/celery/README.md": "how-to/from-celery.md",
    "titanic/taskiq/README.md": "how-to/taskiq.md",
    "titanic/web/README.md": "how-to/web.md",
    "broker/README.md": "how-to/broker.md",
    "broker/patterns/README.md": "how-to/patterns.md",
    "data/README.md": "how-to/data.md",
    "deploy/README.md": "operations/handbook.md",
    "deploy/NODES.md": "operations/nodes.md",
    "SECURITY.md": "operations/security.md",
    "titanic/README.md": "reference/titanic.md",
    "titanic/PROTOCOL.md": "reference/protocol.md",
    "titanic/web/HTTP.md": "reference/http.md",
    "tests/benchmarks/README.md": "explanation/benchmarks.md",
    "tests/benchmarks/side_by_side/README.md": "explanation/side-by-side.md",
    "CONTRIBUTING.md": "development/contributing.md",
    "CHANGELOG.md": "development/changelog.md",
}
"""The site's path of each page of the repository."""

PYTHON = {
    "titanic": "Clients, servers, and what a worker knows of its request. Errors are in `titanic.errors`.",
    "titanic.aio": "The client for asyncio.",
    "titanic.tasks": "Tasks of a Python program.",
    "titanic.schedules": "Schedules of services without tasks.",
    "titanic.django": "Tasks of a Django project.",
}
"""The packages of the Python reference, with their introductions."""

LAZY = {
    "titanic.tasks": "titanic.tasks.memory_queue.MemoryQueue",
    "titanic.django": "titanic.django.backend.TitanicBackend",
}
"""What these packages import only when it is used."""

PLAIN = ("titanic.protocol.", "titanic.jobs.", "titanic.tasks.task_errors.", "titanic.celery")
"""Modules whose classes are read as documents: all their members are shown, also those without a docstring."""

ASSETS = "deploy/docs/assets/"

_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*\]\()([^)\s]+)(\))")


class BrokenLink(Exception):
    """A page links to what is not there."""


def assemble(source: Path = SOURCE) -> None:
    """Write the pages into `source`, which is emptied first. Raises BrokenLink."""
    shutil.rmtree(source, ignore_errors=True)
    for page, path in PAGES.items():
        _write(source / path, _linked(source, page, path))
    for path, text in generated():
        _write(source / path, text)
    shutil.copytree(HERE / "assets", source / "assets")
    shutil.copyfile(HERE / "mkdocs.yml", SETTINGS)
    _write(source / "llms.txt", _list_for_programs(source))


def generated() -> Iterator[tuple[str, str]]:
    """The pages of the reference that declarations in the source describe: their paths and texts."""
    yield "reference/command-line.md", _commands()
    settings = (ROOT / "deploy/titanic.toml").read_text()
    yield (
        "reference/settings.md",
        f"# Settings file\n\n`titanic config` shows which values apply.\n\n```toml\n{settings}```\n",
    )
    yield "reference/metrics.md", f"{_metrics()}\n{_alerts()}"
    yield "reference/log-events.md", _log_events()
    yield "reference/python.md", _python()


def _linked(source: Path, page: str, path: str) -> str:
    """The text of a page, with links that hold on the site."""
    parts, fenced = list[str](), False
    for part in re.split(r"(?m)(^ *(?:```|~~~).*$)", (ROOT / page).read_text()):
        if re.match(r" *(```|~~~)", part):
            fenced = not fenced
        elif not fenced:
            part = _LINK.sub(lambda link: _link(source, page, path, link), part)
        parts.append(part)
    return "".join(parts)


def _link(source: Path, page: str, path: str, link: re.Match[str]) -> str:
    before, target, after = link.groups()
    if "](" in before:  # an image inside a link
        before = _LINK.sub(lambda inner: _link(source, page, path, inner), before[:-2]) + "]("
    if re.match(r"[a-z]+:|#", target):
        return f"{before}{target}{after}"
    name, mark, anchor = target.partition("#")
    found = os.path.normpath(Path(page).parent / name)
    if (ROOT / found).is_dir():
        if not (ROOT / found / "README.md").exists():
            return before[1:-2]  # a folder of source, which is not on the site
        found = f"{found}/README.md"
    if not (ROOT / found).exists():
        raise BrokenLink(f"{page} links to {target}, which is not there")
    if found not in PAGES and not found.startswith(ASSETS):
        copy = source / "files" / found
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / found, copy)
    to = PAGES.get(found) or (found.removeprefix("deploy/docs/") if found.startswith(ASSETS) else f"files/{found}")
    return f"{before}{os.path.relpath(to, Path(path).parent)}{mark}{anchor}{after}"


def _commands() -> str:
    """Every command's help, as a terminal of 96 columns shows it."""
    from titanic.cli import main
    from titanic_data.cli import main as data

    parts = ["# Command line\n"]

    def add(command: click.Command, context: click.Context) -> None:
        parts.append(f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n")
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None and not inner.hidden:
                    add(inner, _context(inner, name, context))

    add(main, _context(main, "titanic", None))
    add(data, _context(data, "titanic-data", None))
    return "\n".join(parts)


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    return click.Context(command, info_name=name, parent=parent, terminal_width=96, max_content_width=96)


def _metrics() -> str:
    """The metrics of a server that has just started, with those that need a cause, of a worker and of the gateway."""
    from dataclasses import replace

    from titanic import Server, ServerConfig
    from titanic.metrics import families
    from titanic.metrics.gateway import HELD, GatewayFigures
    from titanic.metrics.worker import WorkerMetrics
    from titanic.server.snapshot import ArchiveLag, NodeSnapshot

    with tempfile.TemporaryDirectory() as folder:
        config = ServerConfig(store=Path(folder) / "store", bind=("tcp://127.0.0.1:*",), capacity=32 << 20)
        with Server(config) as server:
            snapshot = server.snapshot()
    refused, node = {("ann", "full"): 1}, NodeSnapshot("a", 1, 0, 1.0, 0, 0)
    lag, paused = ArchiveLag(0, 0.0), ["mail"]
    whole = replace(
        snapshot,
        refused_users=refused,
        forbidden=refused,
        paused=paused,
        archive_lag=lag,
        backed_up_at=0.0,
        node=node,
    )
    worker = WorkerMetrics()
    worker.processes(0, 0, 0)
    parts = ["# Metrics\n"]
    for source, found in (
        ("`titanic serve --metrics`", families.queue(whole)),
        ("`titanic work --metrics` and `titanic worker --metrics`", worker.collect()),
        ("`/metrics` of the gateway", GatewayFigures({}, {}, dict.fromkeys(HELD, 0)).collect()),
        ("each of them", families.Process().collect()),
    ):
        parts += [f"From {source}:\n", "| name | type | labels | meaning |", "|---|---|---|---|"]
        for one in found:
            name = one.name + {"counter": "_total", "info": "_info"}.get(one.type, "")
            labels = ", ".join(getattr(one, "_labelnames", ())) or ", ".join({*one.samples[0].labels} - {"le"})
            parts.append(f"| `{name}` | {one.type} | {labels} | {one.documentation} |")
        parts.append("")
    return "\n".join(parts)


def _alerts() -> str:
    """The alerts of Prometheus, with links to what the runbook says of each."""
    import yaml  # what mkdocs reads its settings with

    text = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    groups = yaml.safe_load(text)["groups"]
    headings = [line for line in (ROOT / "deploy/README.md").read_text().splitlines() if line.startswith("### Titanic")]
    rows = ["## Alerts\n", "| alert | severity | after | text |", "|---|---|---|---|"]
    for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
        heading = next(line for line in headings if rule["alert"] in re.findall(r"\w+", line))
        link = f"../operations/handbook.md#{re.sub(r'[^a-z ]', '', heading[4:].lower()).replace(' ', '-')}"
        summary = rule["annotations"]["summary"].replace("}}B", "}} bytes")
        says = re.sub(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}", r"*\1*", summary)
        severity, wait = rule["labels"]["severity"], rule.get("for", "at once")
        rows.append(f"| [{rule['alert']}]({link}) | {severity} | {wait} | {says} |")
    return "\n".join([*rows, f"\nWhen each fires (`alerts.yml`):\n\n```yaml\n{text}```\n"])


def _log_events() -> str:
    from titanic.logs.events import EVENTS

    rows = ["# Log events\n", "In the journal, field `TITANIC_EVENT`; as JSON, key `event`.\n", "| event | when |"]
    rows.append("|---|---|")
    rows += [f"| {', '.join(f'`{name.strip()}`' for name in names.split(','))} | {when} |" for names, when in EVENTS]
    return "\n".join([*rows, ""])


def _python() -> str:
    """The public names of PYTHON's packages, by directives of mkdocstrings."""
    parts = ["# Python\n"]
    for package, introduction in PYTHON.items():
        parts.append(f"## {package}\n\n{introduction}\n")
        parts += [_directive(where) for where in (*_exports(package), LAZY.get(package)) if where]
    parts += [f"## {name}\n\n{_directive(name)}" for name in ("titanic.celery", "titanic.errors")]
    return "\n".join(parts)


def _directive(where: str) -> str:
    options = ["heading_level: 3"]
    if where.startswith(PLAIN):
        options.append("show_if_no_docstring: true")
    if where.startswith(("titanic.django.", "titanic.celery")):
        options.append("inherited_members: false")
    if where == "titanic.celery":
        options.append('filters: ["!^_", "!^[A-Z_]+$", "!^CeleryNames$"]')
    return "\n      ".join([f"::: {where}\n    options:", *options]) + "\n"


def _exports(package: str) -> Iterator[str]:
    """Where the public names of a package are defined."""
    folder = ROOT / package.replace(".", "/")
    stub = folder / "__init__.pyi"
    for node in ast.parse((stub if stub.exists() else folder / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("titanic"):
            for one in node.names:
                if not one.name.startswith("_") and node.module not in ("titanic.errors", "titanic.version"):
                    yield f"{node.module}.{one.name}"


def _list_for_programs(source: Path) -> str:
    """llms.txt: what there is to read, with the first sentence of each page."""
    rows = ["# Titanic\n", "> A persistent request queue for ZeroMQ, in Python.\n", "## Pages\n"]
    for path in sorted(source.rglob("*.md")):
        title, _, rest = path.read_text().partition("\n")
        first = next((part for part in rest.split("\n\n") if part.strip() and part.strip()[0] not in "#|`[<:!"), "")
        sentence = " ".join(first.split()).partition(". ")[0].rstrip(".:")
        sentence = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence)
        rows.append(f"- [{title.lstrip('# ')}]({path.relative_to(source)}): {sentence}.".replace(": .", ""))
    return "\n".join([*rows, ""])


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def build(out: Path) -> None:
    """Build the site into `out`. Raises BrokenLink, and CalledProcessError for what mkdocs warns of."""
    assemble()
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--clean"]
    environment: dict[str, Any] = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "TITANIC_PURE": "1"}
    subprocess.run([*command, "-f", str(SETTINGS), "-d", str(out.resolve())], check=True, env=environment)
    for path in SOURCE.rglob("*.md"):
        target = out / path.relative_to(SOURCE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
    click.echo(f"{sys.argv[1]}/index.html")
