"""A worker of flow_app.py: python flow_worker.py JOBS; what it serves is at TITANIC_ENDPOINT."""

from __future__ import annotations

import logging
import sys

from support.flow_app import app

logging.basicConfig(level=logging.INFO)
app.worker(jobs=int(sys.argv[1])).run()
