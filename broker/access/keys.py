"""Key pairs and the files they are kept in; bearer tokens.

A pair has a public and a secret half, each 40 characters of Z85 (https://rfc.zeromq.org/spec/32/). Files are those of
pyzmq's `zmq.auth` and CZMQ: NAME.key has the public half, to hand out; NAME.key_secret has both. They are read and
written here: `zmq.auth` makes secret files that everybody may read for a moment, takes 7 ms to import, and checks
nothing of what it reads.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from broker.errors import AccessError

NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}")
"""What users are called, and key files before their suffix: shorter than a key, so that none is taken for one."""
PUBLIC_SUFFIX, SECRET_SUFFIX = ".key", ".key_secret"

KEY_CHARACTERS = 40
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""Z85's digits; five of them are 32 bits, the first of them the highest."""
_DIGITS = {character: value for value, character in enumerate(ALPHABET)}

MOST_BYTES = 64 * 1024
"""A larger file is none with a key."""

PUBLIC_BANNER = "# The public key of {name}: it can be shared.\n"
SECRET_BANNER = "# The secret key of {name}: anyone with this file can act as {name}. Do not copy or share it.\n"


@dataclass(frozen=True, slots=True)
class Keys:
    """A key pair, each half 40 bytes of Z85."""

    public: bytes
    secret: bytes = field(repr=False)


def key_fault(key: str) -> str:
    """Why this is no key; empty if it is one. The text does not have the key in it: it may be a secret one."""
    if len(key) != KEY_CHARACTERS:
        return f"a key has {KEY_CHARACTERS} characters, this one has {len(key)}"
    strange = sorted({character for character in key if character not in _DIGITS})
    if strange:
        return f"a key is written in Z85, which has no {', '.join(map(repr, strange))}"
    for at in range(0, KEY_CHARACTERS, 5):
        value = 0
        for character in key[at : at + 5]:
            value = value * 85 + _DIGITS[character]
        if value >= 1 << 32:
            return "a key is written in Z85, and this is not valid Z85"
    return ""


def new_keys(directory: str | Path, name: str, overwrite: bool = False) -> tuple[Path, Path]:
    """Make a key pair; the paths of the public and of the secret file, the latter readable by its owner only.

    Raises AccessError: the name cannot be one, one of the files exists and `overwrite` is false, or the directory
    cannot be written to.
    """
    import zmq  # reading keys does not need it

    if not NAME.fullmatch(name):
        raise AccessError(f"{name!r} cannot be the name of a key; use 1 to 32 letters, digits, '_', '.' and '-'")
    public, secret = Path(directory, name + PUBLIC_SUFFIX), Path(directory, name + SECRET_SUFFIX)
    for path in () if overwrite else (secret, public):
        if os.path.lexists(path):
            shown = f", or see its public key with `titanic keys show {secret}`" if path == secret else ""
            raise AccessError(f"{path}: the file exists and was not overwritten; choose another name{shown}")
    pair = Keys(*zmq.curve_keypair())
    _write(secret, _file_of(name, pair, secret=True), 0o600, overwrite)
    try:
        _write(public, _file_of(name, pair), 0o644, overwrite)
    except AccessError:
        if not overwrite:
            secret.unlink(missing_ok=True)  # half a pair is in the way of another try
        raise
    return public, secret


def ensure_keys(directory: str | Path, name: str) -> bool:
    """Make a key pair unless there is one; returns whether it was made. For scripts that run more than once: an
    existing pair is kept, and its public file is written again if it is missing. Raises AccessError as `new_keys`, and
    when what is there is no key."""
    public, secret = Path(directory, name + PUBLIC_SUFFIX), Path(directory, name + SECRET_SUFFIX)
    if not os.path.lexists(secret):
        new_keys(directory, name)
        return True
    pair = load_secret(secret)
    if not os.path.lexists(public):
        _write(public, _file_of(name, pair), 0o644)
    elif public_key(public) != pair.public.decode():
        raise AccessError(f"{public}: it does not match {secret}; move the wrong one away")
    return False


def _file_of(name: str, pair: Keys, secret: bool = False) -> str:
    """What a key file says, the public one or the secret one."""
    lines = ["metadata", "curve", f'    public-key = "{pair.public.decode()}"']
    if secret:
        lines.append(f'    secret-key = "{pair.secret.decode()}"')
    return (SECRET_BANNER if secret else PUBLIC_BANNER).format(name=name) + "".join(f"{line}\n" for line in lines)


def _write(path: Path, text: str, mode: int, overwrite: bool = False) -> None:
    """Write a file that has its rights from its first moment, and is there for good."""
    target = path.with_name(f".{path.name}.{os.urandom(4).hex()}") if overwrite else path
    try:
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            os.fchmod(file, mode)  # the umask may have taken some away
            with open(file, "w", encoding="ascii", closefd=False) as stream:
                stream.write(text)
            os.fsync(file)
            if overwrite:
                target.replace(path)
            _sync(path.parent)
        except BaseException:
            with suppress(OSError):
                target.unlink()
            raise
        finally:
            os.close(file)
    except OSError as error:
        advice = "create the directory first" if isinstance(error, FileNotFoundError) else "choose another directory"
        raise AccessError(f"{path}: cannot be written: {error.strerror}; {advice}") from error


def _sync(directory: Path) -> None:
    """Have a directory's new names on disk."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def load_secret(path: str | Path) -> Keys:
    """The pair of a secret key file. AccessError: it cannot be read, has no secret key, or everybody may read it.

    Only everybody's rights count: those of a group are given on purpose, and systemd's LoadCredential hands files out
    with mode 0440 and an access list, which appears as a group's.
    """
    text, mode = _read(path)
    found = _keys_in(path, text)
    if b"secret-key" not in found:
        advice = f"give the file that ends with {SECRET_SUFFIX}"
        raise AccessError(f"{path}: it has only a public key, and a secret key is needed; {advice}")
    if mode & stat.S_IROTH:
        fact = f"any local user can read this secret key (mode {mode:04o})"
        advice = f"run: chmod 600 {path}, and create another pair if other users had access"
        raise AccessError(f"{path}: {fact}; {advice}")
    pair = Keys(found[b"public-key"], found[b"secret-key"])
    _check_pair(path, pair)
    return pair


def _check_pair(path: str | Path, pair: Keys) -> None:
    import zmq  # needed by owners of a secret key, which connect or listen; not for public ones

    if zmq.curve_public(pair.secret) != pair.public:
        raise AccessError(f"{path}: its public and secret keys do not match; restore the file, or create another pair")


def public_key(text_or_path: str | Path, folder: str | Path = "") -> str:
    """A public key in Z85: the text itself, or what is in a key file, which may be a secret one, too.

    `folder` is where relative paths begin. Raises AccessError when it is neither.
    """
    text = os.fspath(text_or_path)
    path = Path(folder, text)
    named = not isinstance(text_or_path, str) or text.endswith((PUBLIC_SUFFIX, SECRET_SUFFIX))
    if not named and not os.path.lexists(path):
        fault = key_fault(text)
        if not fault:
            return text
        like_a_key = abs(len(text) - KEY_CHARACTERS) < 5 and not text.startswith(("/", "."))
        shown = f"{text[:4]}…" if like_a_key else text  # it may be a secret one, mistyped
        raise AccessError(
            f"{shown!r} is neither a public key nor a file with one: {fault}; give the 40 characters that"
            f" `titanic keys show` prints, or the path of a {PUBLIC_SUFFIX} file"
        )
    return _keys_in(path, _read(path)[0])[b"public-key"].decode()


def _read(path: str | Path) -> tuple[bytes, int]:
    """A file's content and its mode: of the same file, whatever happens to its name."""
    try:
        with Path(path).open("rb") as file:
            content, mode = file.read(MOST_BYTES + 1), os.fstat(file.fileno()).st_mode
    except FileNotFoundError as error:
        raise AccessError(f"{path}: there is no such key file; `titanic keys new` creates a pair") from error
    except (OSError, ValueError) as error:
        fact = error.strerror if isinstance(error, OSError) else "a path cannot contain NUL"
        raise AccessError(f"{path}: this key file cannot be read: {fact}; check its permissions") from error
    if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
        fact = f"any local user can change this key file (mode {stat.S_IMODE(mode):04o})"
        raise AccessError(f"{path}: {fact}; run: chmod o-w {path}, and check that the key is still the right one")
    return content, stat.S_IMODE(mode)


def _keys_in(path: str | Path, text: bytes) -> dict[bytes, bytes]:
    """What a key file has: `public-key`, and in a secret one `secret-key`."""
    found: dict[bytes, bytes] = {}
    for number, line in enumerate(text.splitlines() if len(text) <= MOST_BYTES else (), 1):
        name, equals, value = line.partition(b"=")
        name = name.strip()
        if not equals or name not in (b"public-key", b"secret-key"):
            continue
        if name in found:
            raise AccessError(f"{path}:{number}: there is a second {name.decode()}; keep one")
        found[name] = value.strip().strip(b"\"'")
        if fault := key_fault(found[name].decode("latin-1")):
            raise AccessError(f"{path}:{number}: invalid {name.decode()}: {fault}; copy the file again")
    if b"public-key" not in found:
        what = f'{path}: this is not a key file: it has no line public-key = "…"'
        raise AccessError(f"{what}; restore it; `titanic keys new` creates one, `titanic keys server` one for a server")
    return found


def new_token() -> tuple[str, str]:
    """A bearer token of 256 random bits, and its hash for the access file."""
    from secrets import token_urlsafe  # brings OpenSSL, and only few want a token

    token = token_urlsafe(32)
    return token, hash_token(token)


def hash_token(token: str) -> str:
    """`sha256:` and 64 hexadecimal digits. Enough for a token that is random: trying them all is impossible."""
    from hashlib import sha256  # brings OpenSSL, which a client does without

    return f"sha256:{sha256(token.encode()).hexdigest()}"
