"""What an archive of closed requests tells titanic.admin: that it is there, and what it has.

{"do": "archive"}                          nothing; the answer says how far it is
{"do": "archive", "register": true}        from now on, keep what is closed until it is acknowledged
{"do": "archive", "register": false}       no more
{"do": "archive", "upto": 500, "uuid": …}  everything up to number 500 is archived, which is this request

"store": …                   it is about this store, and an error where the server has another one
"archive": …, "name": …      whose archive it is: an id, and for people where it is. Nobody else may speak for it then

All ids are 32 hexadecimal digits.
"""

from __future__ import annotations

from typing import Any

from titanic.errors import InvalidArchive
from titanic.store import Archivist, WriteTransaction
from titanic.util import ids
from titanic.util.quoting import quoted

KNOWN = {"do", "register", "upto", "uuid", "store", "archive", "name"}


def read(given: dict[str, Any]) -> dict[str, Any]:
    """Check the options; ValueError says what is wrong."""
    if unknown := given.keys() - KNOWN:
        raise ValueError(f"unknown option {quoted(sorted(unknown)[0])}; there are {', '.join(sorted(KNOWN))}")
    options = {"do": "archive", "register": given.get("register"), "upto": given.get("upto"), "uuid": None}
    if options["register"] is not None and not isinstance(options["register"], bool):
        raise ValueError("register must be true or false")
    upto = options["upto"]
    if upto is not None:
        if type(upto) is not int or upto < 0:
            raise ValueError("upto must be a number, 0 or more")
        options["uuid"] = _id(given, "uuid", "that of the request with the number upto, ")
    options["store"] = _id(given, "store") if given.get("store") is not None else None
    options["archivist"] = None
    if given.get("archive") is not None:
        name = given.get("name", "")
        if not isinstance(name, str):
            raise ValueError("name must be text")
        options["archivist"] = Archivist(_id(given, "archive"), name)
    return options


def _id(given: dict[str, Any], name: str, whose: str = "") -> bytes:
    found = ids.parse(str(given.get(name)).encode(errors="replace"))
    if found is None:
        raise ValueError(f"{name} must be {whose}32 hexadecimal digits")
    return found


def obey(transaction: WriteTransaction, options: dict[str, Any], now_us: int) -> dict[str, Any]:
    """Do it. Raises InvalidArchive."""
    identity = transaction.identity()
    if options["store"] is not None and options["store"] != identity:
        fact = f"its id is {identity.hex() if identity else 'not there yet'}, meant is {options['store'].hex()}"
        raise InvalidArchive("this server has another store", fact, "ask the server that has the store")
    archivist = options["archivist"]
    if options["register"] is not None:
        if options["register"]:
            transaction.register_archive(archivist)
        else:
            transaction.unregister_archive()
    if options["upto"] is not None:
        transaction.acknowledge_archive(options["upto"], options["uuid"], archivist)
    known = transaction.archivist()
    return {
        **transaction.archive()._asdict(),
        "store": identity and identity.hex(),
        "archive": known and known.id.hex(),
        "name": known and known.name,
    }
