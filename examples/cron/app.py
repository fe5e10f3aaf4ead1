"""Sums up the orders of the day when it is asked to."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ORDERS = (12.0, 20.0, 10.5)


class Job(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"report of {len(ORDERS)} orders: {sum(ORDERS):.2f}\n".encode())


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Job).serve_forever()
