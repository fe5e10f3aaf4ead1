"""Calls of gRPC among requests."""

from serving.proxy.http1.grpccall import is_grpc_call
from serving.proxy.http1.requesthead import read_request_head


def test_a_client_of_grpc_says_so() -> None:
    raw = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/grpc+proto"
    assert is_grpc_call(read_request_head(raw, header_count_max=9))
    assert not is_grpc_call(read_request_head(b"GET / HTTP/1.1\r\nHost: h", header_count_max=9))
