"""A Django project made of the cookbook's files, with `titanic worker` as people run it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cli_titanic import CLEAN, Running, running
from support.postgres import shared_server
from support.processes import IN_ITS_FOLDER, Fork
from support.waiting import PATIENCE

import titanic
from titanic import Client, Server

ROOT = Path(titanic.__file__).parent.parent
FILES = dict(re.findall(r"```python\n# (\w+/\w+\.py)\n(.*?)```", (ROOT / "titanic/COOKBOOK.md").read_text(), re.DOTALL))
SHELL = """
import os, sys, json
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
import django
django.setup()
from django.test import Client
from shop.models import Invoice
"""
SETTINGS = """
SECRET_KEY = "x"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "mysite.urls"
INSTALLED_APPS = [f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "messages")] + ["shop", "mail"]
SILENCED_SYSTEM_CHECKS = ["admin.E403", "admin.E408", "admin.E409", "admin.E410"]
TITANIC_CONSOLE = "http://console/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": %r}
"""
MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
COUNT = """

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task
def count() -> int:
    return Invoice.objects.count()
"""

ENV = CLEAN | IN_ITS_FOLDER | {"PYTHONPATH": str(ROOT)}


def database(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db.sqlite3"), "OPTIONS": {"timeout": 60}}
    server = shared_server()
    name = server.new_database()
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": "titanic",
        "HOST": str(server.folder),
        "PORT": str(server.port),
    }


class Project:
    def __init__(self, folder: Path, endpoint: str, kind: str = "sqlite") -> None:
        self.folder = folder / "project"
        files = {
            **FILES,
            "manage.py": MANAGE,
            "mysite/__init__.py": "",
            "shop/__init__.py": "",
            "mail/__init__.py": "",
            "mysite/settings.py": SETTINGS % database(kind, folder) + FILES["mysite/settings.py"],
            "shop/tasks.py": FILES["shop/tasks.py"] + COUNT,
        }
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("tcp://127.0.0.1:5555", endpoint))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.folder, env=ENV, capture_output=True, text=True, check=False)

    def shell(self, program: str) -> Any:
        pipe, imports = subprocess.PIPE, ("django.core.management", "django.test", "psycopg")
        words, files = ("-c", SHELL + program), {"stdout": pipe, "stderr": pipe}
        with Fork(*words, env=ENV, imports=imports, cwd=self.folder, **files) as process:
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err.decode()
        return json.loads(out.splitlines()[-1])

    @contextmanager
    def worker(self, app: str) -> Iterator[Running]:
        log = self.folder / "worker.log"
        with chdir(self.folder), running(log, "worker", app, PYTHONPATH=str(ROOT)) as worker:
            yield worker


@pytest.fixture
def project(tmp_path: Path, server: Server) -> Project:
    return Project(tmp_path, server.endpoints[0])


@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.torture), "postgresql"])
def test_the_recipe(tmp_path: Path, server: Server, client: Client, kind: str) -> None:
    project = Project(tmp_path, server.endpoints[0], kind)
    created = project.shell("""
from django.core.management import call_command
from django.db import transaction
call_command("makemigrations", "shop")
call_command("migrate")
client = Client()
codes = [client.post(f"/invoices/{order}").status_code for order in (7, 7, 8)]
try:
    with transaction.atomic():
        client.post("/invoices/9")
        raise LookupError
except LookupError:
    pass
print(json.dumps([codes, list(Invoice.objects.values_list("order", "url"))]))
""")
    assert created == [[202] * 3, [[7, ""], [8, ""]]]
    rows, _ = client.list()
    assert [row["key"] for row in rows] == ["mysite.render:invoice 1", "mysite.render:invoice 2"]
    with project.worker("mysite.queue:app"):
        for row in rows:
            assert client.wait(row["uuid"], 90)[0].endswith(b'.pdf"')
    assert all("keep" not in client.show(row["uuid"])["options"] for row in rows)  # the admin's links outlast the hour
    urls, links, uuid = project.shell("""
from titanic.django import request_link
from shop.tasks import count
invoices = Invoice.objects.order_by("order")
links = [[request_link(Invoice().request)], [request_link(one.request) for one in invoices]]
print(json.dumps([list(invoices.values_list("order", "url")), links, count.enqueue().id]))
""")
    assert urls == [[7, "/media/invoice-1.pdf"], [8, "/media/invoice-2.pdf"]]
    pages = [f'<a href="http://console/requests/{row["uuid"]}">{row["uuid"][:8]}</a>' for row in rows]
    assert links == [[""], pages]
    # the framework's tasks
    with project.worker("titanic.django:default"):
        assert client.wait(uuid, 90) == [b"2"]
    got = f"from shop.tasks import count; r = count.get_result({uuid!r}); print(json.dumps([r.status, r.return_value]))"
    assert project.shell(got) == ["SUCCESSFUL", 2]


def test_what_the_recipe_says_of_failures(project: Project) -> None:
    """A server that does not answer: the view fails with the row saved, and the sweep submits its task later."""
    found = project.shell("""
from django.core.management import call_command
from django.db import transaction
from django.conf import settings
settings.DATABASES["default"]["ATOMIC_REQUESTS"] = True
from mysite.queue import app
from shop.tasks import render
from titanic.django import default
call_command("makemigrations", "shop")
call_command("migrate")
endpoint, app.endpoint, app._timeout = app.endpoint, "tcp://127.0.0.1:9", 0.1
client = Client(raise_request_exception=False)
codes = [client.get("/invoices/7").status_code, client.post("/invoices/7").status_code]
with transaction.atomic():
    transaction.on_commit(lambda: render.submit(1), robust=True)
rows = [*Invoice.objects.values_list("order", "request")]
with app.testing() as queue:
    queue.advance(600)
    submitted = [one["service"] for one in queue.requests()]
from shop.tasks import count
with default.testing() as queue:
    result = count.enqueue()
    queue.run()
    reply = queue.reply(result.id)[0].decode()
uuids = Invoice.objects.values_list("request", flat=True)
print(json.dumps([codes, rows, submitted, [len(one) for one in uuids], reply]))
""")
    assert found[:2] == [[405, 500], [[7, ""]]]
    assert sorted(found[2]) == ["mysite.render", "mysite.sweep", "mysite.sweep"]
    assert found[3:] == [[32], "1"]


MAIL = """
import socketserver, threading
from django.conf import settings
from django.core.mail import EmailMessage
from mysite.queue import app
got, refuse = [], ["421 away"]

class Smtp(socketserver.StreamRequestHandler):
    def say(self, text):
        self.wfile.write(text.encode() + b"\\r\\n")

    def handle(self):
        self.say("220 here")
        for line in self.rfile:
            verb = line.split(b" ")[0].strip().upper()
            if verb == b"DATA":
                self.say("354 go on")
                body = []
                while (one := self.rfile.readline()) != b".\\r\\n":
                    body.append(one)
                got.append([to, b"".join(body).decode()])
            elif verb == b"RCPT":
                to = line.decode().strip()
                if refuse:
                    self.say(refuse.pop())
                    continue
            self.say("221 bye" if verb == b"QUIT" else "250 ok")
            if verb == b"QUIT":
                return

with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp) as server:
    threading.Thread(target=server.serve_forever).start()
    settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = "mail.tasks.Backend", *server.server_address
    with app.testing() as queue:
        EmailMessage("Hi", "Grüße\\nall", "Shop <shop@example.org>", ["a@example.org"], bcc=["b@example.org"]).send()
        queue.advance(60)
        ended = [[one["state"], one["attempts"]] for one in queue.requests() if one["service"] == "mysite.deliver"]
    server.shutdown()
print(json.dumps([got, sorted(ended)]))
"""


def test_mail(project: Project) -> None:
    got, ended = project.shell(MAIL)
    assert sorted(to for to, _ in got) == ["rcpt TO:<a@example.org>", "rcpt TO:<b@example.org>"]
    assert all("Subject: Hi\r\n" in text and "Gr\u00fc\u00dfe\r\nall\r\n" in text for _, text in got)
    assert ended == [["done", 1], ["done", 2]]


def test_the_test_of_the_recipe(project: Project) -> None:
    done = project.run("manage.py", "test", "shop")
    assert (done.returncode, "Ran 1 test" in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("manage.py", "", r"Django has no settings; DJANGO_SETTINGS_MODULE is not set, and .*/manage.py is missing or"),
        ("manage.py", None, r"Django has no settings; .*; set it, or run this in the project's directory"),
        ("mysite/settings.py", "x = 1\nimport none_such\n", r"cannot import .*mysite.settings; ModuleNotFoundError: No "
         r"module named 'none_such'; see .*/mysite/settings.py:2"),
        ("shop/models.py", "\nfrom django.db import models\nmodels.NoField()\n", r"AttributeError: .*shop/models.py:3"),
        ("shop/tasks.py", "def broken(:\n", r"cannot import the tasks.py of INSTALLED_APPS; SyntaxError: .*tasks.py:1"),
        ("mysite/queue.py", "import shop.models\n", r"cannot import mysite.queue; Improperly.*models.py:\d"),
    ],
)  # fmt: skip
def test_a_project_that_cannot_be_set_up(project: Project, file: str, text: str | None, fault: str) -> None:
    path = project.folder / file
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with project.worker("mysite.queue:app") as worker:
        assert worker.ends() == 2
        assert re.search(fault, worker.log.read_text()), worker.log.read_text()
        assert "Traceback" not in worker.log.read_text()


def test_a_django_without_a_tasks_framework() -> None:
    program = "import sys; sys.modules |= {'django.tasks': None, 'django_tasks': None}\nimport titanic.django"
    command = [sys.executable, "-c", f"{program}\ntitanic.django.TitanicBackend"]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True, check=False)
    assert re.search(
        "TitanicBackend cannot be used; there is no module django.tasks; use Django 6, or pip", done.stderr
    )
