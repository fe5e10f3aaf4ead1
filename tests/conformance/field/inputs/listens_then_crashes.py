"""An app that listens, and with VERSION=2 ends 0.3 s later, as with a worker whose import fails."""  # noqa: INP001 - run by its path

import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


class Serving(BaseHTTPRequestHandler):
    """GET is served."""

    def do_GET(self) -> None:
        """Serve."""
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"served")


server = HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Serving)
if os.environ.get("VERSION") == "2":
    threading.Timer(0.3, os._exit, (1,)).start()
server.serve_forever()
