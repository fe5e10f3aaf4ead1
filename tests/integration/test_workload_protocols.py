"""gRPC and websockets to pods of a ScaledWorkload, which have no queue-proxy."""

import asyncio

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from serving.net.cluster.kinds import ENDPOINT_SLICE
from tests.conformance.grpc import server as grpc_server
from tests.conformance.grpc.cases import CASES, run_cases
from tests.eventually import until
from tests.integration.activator_stage import staged
from tests.integration.test_activator_workloads import HOST, endpoint_slice, serve_cold


async def test_all_grpc_call_types_reach_a_pod_without_queue_proxy() -> None:
    server, port = await grpc_server.started(0, grpc_server.TestService())
    async with staged() as stage:
        await serve_cold(stage)
        await stage.cluster.create(ENDPOINT_SLICE, endpoint_slice(port, protocol="kubernetes.io/h2c"))
        await until(lambda: stage.activator.ingress.router.directory.pods_of(("default", "shop")))
        problems = await run_cases(stage.public, HOST)
    await server.stop(None)
    assert {case: problem for case, problem in problems.items() if problem} == {}
    assert len(problems) == len(CASES)


async def test_websocket_to_workload_at_zero_waits_for_its_pod() -> None:
    async with staged() as stage, serve(echo, "127.0.0.1", 0) as server:
        await serve_cold(stage)
        opening = asyncio.create_task(echoes(*stage.public))
        await until(lambda: stage.level == 1)
        port = next(iter(server.sockets)).getsockname()[1]
        await stage.cluster.create(ENDPOINT_SLICE, endpoint_slice(port, protocol="http"))
        assert await opening == ["0", "1", "2"]


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


async def echoes(host: str, port: int) -> list[str | bytes]:
    """Send three messages on a connection; return the responses."""
    async with connect(f"ws://{HOST}/", host=host, port=port, proxy=None) as connection:
        responses = []
        for number in range(3):
            await connection.send(str(number))
            responses.append(await connection.recv())
    return responses
