"""Answers with a word that another service chooses."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        with urlopen(os.environ["WORDS_URL"]) as answer:
            word = answer.read().decode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"The word is: {word}\n".encode())


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Page).serve_forever()
