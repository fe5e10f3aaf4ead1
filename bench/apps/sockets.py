"""An app of bare sockets for ``bench/cold_start.py``: it reports its start and its answer.

The answer is three times in seconds: when it was executed (``EXEC_S``, set by the shell that executed it), when it
accepted its first connection, and how long it took to answer.
"""

import os
import socket
import time


def main() -> None:
    """Answer one connection after the other; each has one request at a time."""
    accepted_s = 0.0
    with socket.create_server(("127.0.0.1", int(os.environ["PORT"])), backlog=64) as server:
        while True:
            connection, _ = server.accept()
            accepted_s = accepted_s or time.time()
            with connection:
                while b"\r\n\r\n" in connection.recv(65536):
                    began_s = time.time()
                    body = f"{os.environ['EXEC_S']} {accepted_s:.6f} {time.time() - began_s:.6f}\n".encode()
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


if __name__ == "__main__":
    main()
