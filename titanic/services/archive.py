"""What an archive of closed requests tells titanic.admin: that it is there, and what it has.

{"do": "archive"}                          nothing; the answer says how far it is
{"do": "archive", "register": true}        from now on, keep what is closed until it is acknowledged
{"do": "archive", "register": false}       no more
{"do": "archive", "upto": 500, "uuid": …}  everything up to number 500 is archived, which is this request
"""

from __future__ import annotations

from typing import Any

from titanic import ids
from titanic.quoting import quoted
from titanic.store import WriteTransaction

KNOWN = {"do", "register", "upto", "uuid"}


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
        options["uuid"] = ids.parse(str(given.get("uuid")).encode(errors="replace"))
        if options["uuid"] is None:
            raise ValueError("uuid must be that of the request with the number upto, 32 hexadecimal digits")
    return options


def obey(transaction: WriteTransaction, options: dict[str, Any], now_us: int) -> dict[str, Any]:
    """Do it. Raises InvalidArchive."""
    if options["register"] is not None:
        if options["register"]:
            transaction.register_archive()
        else:
            transaction.unregister_archive()
    if options["upto"] is not None:
        transaction.acknowledge_archive(options["upto"], options["uuid"])
    return transaction.archive()._asdict()
