"""An app that responds with its highest number of concurrent requests so far."""

import http.server
import os
import threading
import time

_BUSY_S = 0.002


class _Lone(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # The head and the body are sent together.
    wbufsize = 65_536
    lock = threading.Lock()
    inside = 0
    most = 0

    def do_GET(self) -> None:
        cls = type(self)
        with cls.lock:
            cls.inside += 1
            cls.most = max(cls.most, cls.inside)
        time.sleep(_BUSY_S)
        with cls.lock:
            cls.inside -= 1
        body = str(cls.most).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do nothing."""


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), _Lone).serve_forever()
