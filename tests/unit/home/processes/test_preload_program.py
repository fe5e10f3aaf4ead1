"""Orders from the warm process to its forked processes."""

import os
import socket

import pytest

from serving.home.processes.preload_program import ForkedPod


@pytest.mark.parametrize("reply", [b"", b'{"pid": 7}'])
def test_reply_of_a_closed_socket_is_read(reply: bytes) -> None:
    mine, its = socket.socketpair()
    its.sendall(reply)
    its.close()
    log = os.open(os.devnull, os.O_WRONLY)
    try:
        assert ForkedPod(mine).ordered(b"{}\n", [log]) == ({"pid": 7} if reply else None)
    finally:
        os.close(log)
    assert mine.fileno() == -1
