"""An app that refuses uploads by their head, as routers and checks of rights do, and never reads the body."""  # noqa: INP001 - run by its path

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Refusing(BaseHTTPRequestHandler):
    """GET is served, POST is too large."""

    def do_GET(self) -> None:
        """Serve."""
        self._send(200, b"served")

    def do_POST(self) -> None:
        """Refuse by the head."""
        self._send(413, b"too large")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Refusing).serve_forever()
