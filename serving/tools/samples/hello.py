"""The sample service: a greeting with the name of its revision. Standard library only.

``PORT`` is the port to listen on, ``TARGET`` the name to greet; ``/sleep/SECONDS`` responds after that time,
``/burn/SECONDS`` uses a core for that time.
"""

import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class HelloHandler(BaseHTTPRequestHandler):
    """Responds to every GET."""

    protocol_version = "HTTP/1.1"
    # Head and body in one write: two writes would take 40 ms, by Nagle's algorithm and a delayed acknowledgement.
    wbufsize = -1

    def do_GET(self) -> None:
        """Send a greeting, after the pause or the computation that the path requests."""
        if self.path.startswith("/sleep/"):
            time.sleep(float(self.path.removeprefix("/sleep/")))
        if self.path.startswith("/burn/"):
            end_s = time.monotonic() + float(self.path.removeprefix("/burn/"))
            while time.monotonic() < end_s:
                pass
        target, revision = os.environ.get("TARGET", "world"), os.environ.get("K_REVISION", "no revision")
        body = f"Hello {target} from {revision}, process {os.getpid()}\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve until the process ends."""
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), HelloHandler).serve_forever()


if __name__ == "__main__":
    main()
