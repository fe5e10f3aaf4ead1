"""The client repeats requests whose connection the server dropped."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.core.model.errors import Unavailable
from serving.home.state import kubeconfig
from serving.tools.cli.client.connection import ApiRequest, connect

RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """A server that drops its first connections after reading a request; ``requests`` are all it has read."""

    def __init__(self, dropped_count: int) -> None:
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._dropped_count = dropped_count
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    self.requests.append(connection.recv(65536).partition(b" ")[0])
                    if len(self.requests) > self._dropped_count:
                        connection.sendall(RESPONSE)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextlib.contextmanager
def serving(dropped_count: int) -> Iterator[Server]:
    server = Server(dropped_count)
    try:
        yield server
    finally:
        server.stop()


def send(server: Server, path: Path, method: str) -> object:
    path.write_text(kubeconfig(server.url, "t"), encoding="utf-8")
    with contextlib.closing(connect(str(path)).send(ApiRequest(method=method, path="/", headers={}))) as response:
        return json.loads(b"".join(response.pieces()))


def test_get_is_retried_after_a_dropped_connection(tmp_path: Path) -> None:
    with serving(2) as server:
        assert send(server, tmp_path / "kubeconfig", "GET") == {}
    assert server.requests == [b"GET"] * 3


@pytest.mark.parametrize(("method", "count"), [("GET", 3), ("POST", 1)])
def test_dropped_get_is_sent_three_times_and_post_once(tmp_path: Path, method: str, count: int) -> None:
    with serving(9) as server, pytest.raises(Unavailable):
        send(server, tmp_path / "kubeconfig", method)
    assert server.requests == [method.encode()] * count
