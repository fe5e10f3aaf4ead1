"""An app that fails with a secret in its log, as when its database is away."""  # noqa: INP001 - run by its path

import os
from http.server import HTTPServer, SimpleHTTPRequestHandler

if os.environ.get("DATABASE") == "away":
    raise SystemExit("could not connect to postgres://admin:PASSWORD@db.example.com/prod")
HTTPServer(("127.0.0.1", int(os.environ["PORT"])), SimpleHTTPRequestHandler).serve_forever()
