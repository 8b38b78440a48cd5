"""The example of titanic/web/HTTP.md does what it says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from support.serving import QUICK
from support.web_secured import TOKENS, Secured

import titanic
from broker import Worker

DOCUMENT = Path(titanic.__file__).parent / "web" / "HTTP.md"


def test_what_curl_gets(scene: Secured) -> None:
    (example,) = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    pairs = [part.split("\n# ") for part in example.strip().split("\n\n")]
    env = {"URL": scene.url, "AUTH": f"Authorization: Bearer {TOKENS['alice']}", "PATH": "/usr/bin:/bin"}
    keys = {"key": scene.keys / "alice.key_secret", "server_key": scene.server_key}
    with Worker("upper", lambda frames: [frames[0].upper()], scene.server.endpoints[0], config=QUICK, **keys):
        for command, expected in pairs:
            done = subprocess.run(
                ["bash", "-c", command],
                env=env,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            if expected.startswith("{"):
                found = json.loads(done.stdout)
                has(found, json.loads(expected.replace(", …", "")))
                env["UUID"] = found.get("uuid", "")
            else:
                assert done.stdout == expected


def has(found: object, expected: object) -> None:
    """Whether a document has all names of another, with values of the same kinds."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        for name, value in expected.items():
            has(found[name], value)
