"""Write the manual pages of all commands, and the completion for shells.

manuals.py SHARE    below this folder, in those where man, bash, zsh and fish look
"""

import gzip
import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from titanic.cli import main
from titanic.version import __version__
from titanic_data.cli import main as data

COMPLETIONS = {
    "bash": "bash-completion/completions/titanic",
    "zsh": "zsh/vendor-completions/_titanic",
    "fish": "fish/vendor_completions.d/titanic.fish",
}


def page(context: click.Context) -> str:
    """The help of a command, with its lines as they are."""
    lines = context.command.get_help(context).replace("\\", r"\e").replace("-", r"\-").splitlines()
    name = context.command_path.replace(" ", r"\-")
    short = context.command.get_short_help_str(200).rstrip(".").replace("-", r"\-")
    head = [f'.TH {name} 1 "" "Titanic {__version__}"', ".SH NAME", rf"{name} \- {short}", ".SH DESCRIPTION", ".nf"]
    return "\n".join([*head, *(rf"\&{line}" for line in lines), ".fi", ""])


def write(
    share: Path, command: click.Command, name: str, parent: click.Context | None = None, *, below: bool = True
) -> None:
    """Write the page of a command, and of those below it."""
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=80, help_option_names=["-h", "--help"]
    )
    path = share / "man/man1" / f"{context.command_path.replace(' ', '-')}.1.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(page(context).encode(), 9, mtime=0))
    for inner_name in command.list_commands(context) if below and isinstance(command, click.Group) else ():
        inner = command.get_command(context, inner_name)
        if inner is not None and not inner.hidden:
            write(share, inner, inner_name, context)


if __name__ == "__main__":
    share = Path(sys.argv[1])
    write(share, main, "titanic")
    write(share, data, "titanic-data", below=False)  # its commands need the archive's libraries
    for shell, place in COMPLETIONS.items():
        kind = get_completion_class(shell)
        assert kind is not None
        (share / place).parent.mkdir(parents=True, exist_ok=True)
        (share / place).write_text(kind(main, {}, "titanic", "_TITANIC_COMPLETE").source())
