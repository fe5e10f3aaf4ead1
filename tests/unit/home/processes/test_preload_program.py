"""Orders of the warm process to the processes that it has forked."""

import os
import socket

import pytest

from serving.home.processes.preload_program import ForkedPod


@pytest.mark.parametrize("reply", [b"", b'{"pid": 7}'])
def test_the_reply_of_a_process_that_has_closed_its_socket_counts(reply: bytes) -> None:
    mine, its = socket.socketpair()
    its.sendall(reply)
    its.close()
    log = os.open(os.devnull, os.O_WRONLY)
    try:
        assert ForkedPod(mine).ordered(b"{}\n", [log]) == ({"pid": 7} if reply else None)
    finally:
        os.close(log)
    assert mine.fileno() == -1
