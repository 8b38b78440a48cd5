"""An authority, and certificates of it, made by openssl."""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path
from ssl import PEM_cert_to_DER_cert


class Authority:
    """Who signs certificates; `NAME.pem` and `NAME.secret` are in its folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.name = folder, name
        self._openssl(
            *("req", "-x509", "-subj", f"/CN={name}", "-days", "2", "-out", self.certificate(name)),
            *("-keyout", self.secret(name), *NEW_KEY),
        )

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def secret(self, name: str) -> Path:
        return self.folder / f"{name}.secret"

    def sign(self, name: str, *, days: int = 2, names: str = "IP:127.0.0.1,DNS:localhost") -> None:
        """Make a certificate for a server at 127.0.0.1, or for a client. `names`: of the server."""
        request = self.folder / f"{name}.request"
        extra = self.folder / f"{name}.extra"
        extra.write_text(f"subjectAltName={names}\n")
        self._openssl("req", "-subj", f"/CN={name}", "-out", request, "-keyout", self.secret(name), *NEW_KEY)
        self._openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate(self.name), "-CAkey", self.secret(self.name)),
            *("-days", str(days), "-extfile", extra, "-out", self.certificate(name)),
        )

    def fingerprint(self, name: str) -> str:
        """As the access file has it."""
        return f"sha256:{sha256(PEM_cert_to_DER_cert(self.certificate(name).read_text())).hexdigest()}"

    def encrypted(self, name: str, folder: Path) -> Path:
        """A secret key that wants a password."""
        out = folder / f"{name}.encrypted"
        self._openssl("pkey", "-in", self.secret(name), "-aes256", "-passout", "pass:x", "-out", out)
        return out

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
