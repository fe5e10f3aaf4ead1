"""The query token of daemons in tests. They find it where a supervisor names it, in the environment."""

import atexit
import os
import tempfile
from pathlib import Path

from serving.net.metrics.queries import QUERY_TOKEN_FILE_VARIABLE, QueryGate

TOKEN = "q" * 43
_descriptor, FILE = tempfile.mkstemp(prefix="query-token-")
os.write(_descriptor, TOKEN.encode())
os.close(_descriptor)
atexit.register(Path(FILE).unlink, missing_ok=True)
# Processes that tests start inherit it, and `serving up` replaces it.
os.environ[QUERY_TOKEN_FILE_VARIABLE] = FILE
GATE = QueryGate(FILE)
HEADERS = GATE.headers()
