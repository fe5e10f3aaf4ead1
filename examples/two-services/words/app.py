"""Answers with a word."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Words(BaseHTTPRequestHandler):
    """The service of words."""

    def do_GET(self):
        """Respond with a word."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"serendipity")


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Words).serve_forever()
