"""Sends one message: client.py http://echo.default.localhost:8080"""

import socket
import sys
from urllib.parse import urlsplit

from websockets.sync.client import connect

url = urlsplit(sys.argv[1])
# *.localhost is this machine, though not every resolver knows.
stream = socket.create_connection(("127.0.0.1", url.port))
with connect(f"ws://{url.netloc}/", sock=stream, open_timeout=60) as connection:
    connection.send("hello")
    print(connection.recv())
