"""Tell a call of gRPC from other requests, by its content type (grpc/grpc, doc/PROTOCOL-HTTP2.md)."""

from serving.proxy.http1.requesthead import RequestHead

GRPC_TYPE = b"application/grpc"


def is_grpc_call(head: RequestHead) -> bool:
    """Whether the request is a gRPC call."""
    return (head.get(b"content-type") or b"").startswith(GRPC_TYPE)
