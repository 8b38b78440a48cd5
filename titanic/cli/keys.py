"""`titanic keys`: key pairs, their files, bearer tokens."""

from __future__ import annotations

from pathlib import Path

import click

from broker import ensure_keys, new_keys, new_token, public_key
from titanic.cli.options import FOLDER, command, json_flag, option
from titanic.cli.printing import print_json

SERVER = "server"
"""What the server's own pair is called."""

_folder_option = option(
    "--dir", "folder", type=FOLDER, metavar="DIR", default=".", help="The directory for the two files."
)


@click.group("keys")
def keys() -> None:
    """Make the keys of users and of the server.

    A key pair has a public half, NAME.key, to hand out, and a secret one, NAME.key_secret, which only its owner may
    read. A server knows its users by their public keys, which its access file names; a user knows the server by the
    server's public key. The files are those of pyzmq's zmq.auth, and of CZMQ.

    \b
    Example:
      titanic keys server --dir /etc/titanic
      titanic keys new shop
      titanic keys show shop.key
    """


@command("new")
@click.argument("name")
@json_flag
@_folder_option
def new(name: str, folder: Path, as_json: bool) -> None:
    """Make the key pair of a user: NAME.key and NAME.key_secret.

    Give NAME.key, or the key that is printed, to whoever writes the access file; NAME.key_secret stays with the user.
    Files that are there are not overwritten: the command fails.

    --json prints {key, public_file, secret_file}; key is the public one.

    \b
    Example:
      titanic keys new archive
      titanic keys new reports --json
    """
    public, secret = new_keys(folder, name)
    _tell(public, secret, True, as_json)


@command("server")
@json_flag
@_folder_option
def server(folder: Path, as_json: bool) -> None:
    """Make the server's own key pair, unless it is there.

    server.key is for all users, as their --server-key; server.key_secret is the server's, for `serve --key`. A pair
    that is there is kept, so scripts may run this again; server.key is made again if it is missing.

    --json prints {key, public_file, secret_file, made}; key is the public one, made is false for a pair that was there.

    \b
    Example:
      titanic keys server --dir /etc/titanic
    """
    made = ensure_keys(folder, SERVER)
    _tell(folder / f"{SERVER}.key", folder / f"{SERVER}.key_secret", made, as_json, {"made": made})


def _tell(public: Path, secret: Path, made: bool, as_json: bool, more: dict[str, bool] | None = None) -> None:
    key = public_key(public)
    if as_json:
        print_json({"key": key, "public_file": str(public), "secret_file": str(secret), **(more or {})})
        return
    kept = "" if made else "already there, kept; "
    click.echo(f"{public}: {kept}public, to hand out: {key}")
    use = (
        "--key-file of the server: do not copy or share it"
        if public.stem == SERVER
        else "--key-file of this user alone: do not share it"
    )
    click.echo(f"{secret}: {kept}secret, for {use}")


@command("show")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
def show(path: Path) -> None:
    """Print the public key that a key file has.

    It is 40 characters of Z85, as an access file has them. FILE may be the public or the secret file of a pair; the
    secret key is never printed.

    \b
    Example:
      titanic keys show /etc/titanic/server.key
    """
    click.echo(public_key(path))


@command("token")
def token() -> None:
    """Make a bearer token, for metrics.

    Prints the token, which happens only this once, and below it the line for the user's table in the access file. The
    server knows no more than that line: the token's hash.

    \b
    Example:
      titanic keys token
    """
    secret, hashed = new_token()
    click.echo(secret)
    click.echo(f'tokens = ["{hashed}"]')


for one in (new, server, show, token):
    keys.add_command(one)
