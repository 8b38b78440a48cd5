"""`titanic keys`: key pairs, their files, bearer tokens."""

from __future__ import annotations

from pathlib import Path

import click

from broker import ensure_keys, new_keys, new_token, public_key
from titanic.cli.options import FOLDER, command, json_flag, option
from titanic.cli.printing import print_done, print_json

SERVER = "server"
"""What the server's own pair is called."""

_folder_option = option(
    "--dir", "folder", type=FOLDER, metavar="DIR", default=".", help="The directory for the two files."
)


@click.group("keys")
def keys() -> None:
    """Create keys for users and the server.

    A key pair is a public key file, NAME.key, to hand out, and a secret key file, NAME.key_secret, readable only by its
    owner. The access file lists the users' public keys; users verify the server with the server's public key. The file
    format is that of pyzmq's zmq.auth and of CZMQ.

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
    """Create the key pair of a user: NAME.key and NAME.key_secret.

    Give NAME.key, or the printed key, to the maintainer of the access file; NAME.key_secret stays with the user.
    Existing files are not overwritten: the command fails.

    --json prints {key, public_file, secret_file}; key is the public one.

    \b
    Example:
      titanic keys new archive
      titanic keys new reports --json
    """
    public, secret = new_keys(folder, name)
    _print(public, secret, True, as_json)


@command("server")
@json_flag
@_folder_option
def server(folder: Path, as_json: bool) -> None:
    """Create the server's key pair, unless it exists.

    Users give server.key as --server-key; the server gets server.key_secret as --key-file. An existing pair is kept, so
    scripts can repeat the command; a missing server.key is recreated.

    --json prints {key, public_file, secret_file, made}; key is the public one, made is false for an existing pair.

    \b
    Example:
      titanic keys server --dir /etc/titanic
    """
    made = ensure_keys(folder, SERVER)
    _print(folder / f"{SERVER}.key", folder / f"{SERVER}.key_secret", made, as_json, {"made": made})


def _print(public: Path, secret: Path, made: bool, as_json: bool, more: dict[str, bool] | None = None) -> None:
    key = public_key(public)
    if as_json:
        print_json({"key": key, "public_file": str(public), "secret_file": str(secret), **(more or {})})
        return
    kept = "" if made else "already exists; "
    click.echo(f"{public}: {kept}public, to hand out: {key}")
    use = (
        "--key-file of the server: do not copy or share it"
        if public.stem == SERVER
        else "--key-file of this user alone: do not share it"
    )
    click.echo(f"{secret}: {kept}secret, for {use}")


@command("show")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@json_flag
def show(path: Path, as_json: bool) -> None:
    """Print the public key in a key file.

    It is 40 characters of Z85, as in access files. FILE may be the public or the secret file of a pair; the secret key
    is never printed.

    --json prints {key}.

    \b
    Example:
      titanic keys show /etc/titanic/server.key
    """
    key = public_key(path)
    print_done({"key": key}, key, as_json)


@command("token")
@json_flag
def token(as_json: bool) -> None:
    """Create a bearer token, for metrics and the web console.

    Prints the token, which cannot be shown again, and below it the line for the user's table in the access file. That
    line has only a hash of the token.

    --json prints {token, hash}.

    \b
    Example:
      titanic keys token
    """
    secret, hashed = new_token()
    print_done({"token": secret, "hash": hashed}, f'{secret}\ntokens = ["{hashed}"]', as_json)


for one in (new, server, show, token):
    keys.add_command(one)
