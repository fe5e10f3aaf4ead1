"""The query token of daemons in tests, in the environment variable that a supervisor sets."""

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
# Processes of tests inherit the variable, and `serving up` replaces it.
os.environ[QUERY_TOKEN_FILE_VARIABLE] = FILE
GATE = QueryGate(FILE)
HEADERS = GATE.headers()
