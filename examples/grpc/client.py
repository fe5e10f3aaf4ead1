"""Calls the server: client.py http://grpc.default.localhost:8080"""

import sys
from urllib.parse import urlsplit

import grpc

url = urlsplit(sys.argv[1])
# *.localhost is this machine, though not every resolver knows.
options = [("grpc.default_authority", url.hostname)]
with grpc.insecure_channel(f"127.0.0.1:{url.port}", options=options) as channel:
    print(channel.unary_unary("/Greeter/Greet")(b"Barbara", timeout=60).decode())
