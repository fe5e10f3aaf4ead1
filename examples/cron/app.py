"""Sums up the orders of the day when it is asked to."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ORDERS = (12.0, 20.0, 10.5)


class Job(BaseHTTPRequestHandler):
    """The job: each POST runs it once."""

    def do_POST(self):
        """Respond with the sum of the orders."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"report of {len(ORDERS)} orders: {sum(ORDERS):.2f}\n".encode())


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Job).serve_forever()
