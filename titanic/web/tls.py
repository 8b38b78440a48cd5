"""TLS. Its files are reloaded when they change, because certificates are renewed every few weeks."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from titanic import logs
from titanic.errors import CallerError
from titanic.util.files import state_of
from titanic.web.settings import WebSettings

log = logging.getLogger("titanic.web")


class Tls:
    """The TLS context for connections."""

    def __init__(self, settings: WebSettings) -> None:
        """Raises CallerError for files that cannot be used."""
        assert settings.tls_certificate is not None
        assert settings.tls_key is not None
        self._certificate, self._key = settings.tls_certificate, settings.tls_key
        self._authorities = settings.client_ca
        self._state = self._file_state()
        self.context = _new_context(self._certificate, self._key, self._authorities)

    def given(self, *_: object) -> ssl.SSLContext:
        """Return the context to uvicorn."""
        return self.context

    def refresh(self, *, always: bool = False) -> None:
        """Use a changed certificate for new connections. If it is not usable, the previous one stays in use. (Changed
        client authorities need a restart.)"""
        state = self._file_state()
        if state == self._state and not always:
            return
        self._state = state
        try:
            _new_context(self._certificate, self._key, self._authorities)  # half of a pair must not get into use
            self.context.load_cert_chain(self._certificate, self._key)
        except (CallerError, ssl.SSLError, OSError) as error:
            text = "not reloaded, the previous certificate stays in use: %s"
            log.error(text, error, extra=logs.event("reload-refused"))
            return
        log.info("%s reloaded", self._certificate, extra=logs.event("certificate-reloaded"))

    def _file_state(self) -> tuple[tuple[int, ...], ...]:
        return state_of(self._certificate), state_of(self._key)


def _new_context(certificate: Path, key: Path, authorities: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    what, path, advice = (
        "cannot use TLS",
        certificate,
        "give PEM files that belong together, the key without a password",
    )
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
        if authorities is not None:
            path, advice = authorities, "give a PEM file with the certificates of authorities"
            context.load_verify_locations(authorities)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (ssl.SSLError, OSError, ValueError) as error:
        fact = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        files = f"{path} and {key}" if path == certificate else str(path)
        raise CallerError(what, f"{files}: {fact}", advice) from error
    return context


def _no_password() -> str:
    """Fail instead of prompting at a terminal."""
    raise ValueError("the key has a password")
