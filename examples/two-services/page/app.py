"""Answers with a word that another service chooses."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen


class Page(BaseHTTPRequestHandler):
    """A page with a word of the other service."""

    def do_GET(self):
        """Request a word and respond with the page."""
        with urlopen(os.environ["WORDS_URL"]) as answer:
            word = answer.read().decode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"The word is: {word}\n".encode())


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Page).serve_forever()
