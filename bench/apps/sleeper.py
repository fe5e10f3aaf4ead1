"""Answers each request after a second, with the times of its begin and end.

Threads and bare sockets, so that it starts within 30 ms of CPU. ``SLEEP_S`` is how long it takes, ``PORT`` where it
listens.
"""

import os
import socket
import threading
import time

SLEEP_S = float(os.environ.get("SLEEP_S", "1"))


def serve(connection: socket.socket) -> None:
    """Answer the requests of one connection, one after the other, until it ends."""
    with connection:
        pending = b""
        while True:
            while b"\r\n\r\n" not in pending:
                received = connection.recv(65536)
                if not received:
                    return
                pending += received
            _, _, pending = pending.partition(b"\r\n\r\n")
            begin_s = time.time()
            time.sleep(SLEEP_S)
            body = f"{begin_s:.6f} {time.time():.6f}\n".encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def main() -> None:
    """Listen, and give each connection a thread."""
    with socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "8080"))), backlog=1024) as server:
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
