"""A gRPC server with one method, /Greeter/Greet, on plain bytes: a real one generates its messages with protoc."""

import os
from concurrent.futures import ThreadPoolExecutor

import grpc


def greet(request, context):
    """Greet the name that ``request`` holds as bytes."""
    return b"Hello, " + request + b"!"


server = grpc.server(ThreadPoolExecutor(max_workers=8))
greeter = grpc.method_handlers_generic_handler("Greeter", {"Greet": grpc.unary_unary_rpc_method_handler(greet)})
server.add_generic_rpc_handlers([greeter])
server.add_insecure_port(f"127.0.0.1:{os.environ['PORT']}")
server.start()
server.wait_for_termination()
