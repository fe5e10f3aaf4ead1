"""The gRPC interoperability cases through the real daemons in separate processes."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.conformance.grpc import messages as m
from tests.conformance.grpc.cases import CASES, run_cases
from tests.conformance.grpc.server import TestService, started
from tests.conformance.http import servers
from tests.conformance.http.run import main

NAMES = ("serving", "queue-proxy")


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, servers.Server]]:
    with servers.started(NAMES, grpc=True) as new_servers:
        yield {server.name: server for server in new_servers}


@pytest.mark.parametrize("name", NAMES)
async def test_every_grpc_interop_case_passes(running: dict[str, servers.Server], name: str) -> None:
    cases = await run_cases(running[name].address, servers.HOST)
    assert {case: problem for case, problem in cases.items() if problem} == {}
    assert len(cases) == len(CASES) == 17


def test_target_option_runs_the_interop_suite(
    running: dict[str, servers.Server], capsys: pytest.CaptureFixture[str]
) -> None:
    host, port = running["queue-proxy"].address
    status = main(["--suite", "interop", "--target", f"http://{host}:{port}"])
    printed = capsys.readouterr().out
    # The lines after the table name failed cases.
    assert f"| {host}:{port} | 17 | 0 | 17 |" in printed, printed
    assert status == 0


class _Wrong(TestService):
    """A server that shortens responses and forgets metadata."""

    async def unary(self, request: Any, context: Any) -> Any:  # noqa: ANN401 - grpcio has no types
        del request, context
        return m.SimpleResponse(payload=m.zeros(1))

    async def output(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        del context
        for _ in request.response_parameters[1:]:
            yield m.OutputResponse()


async def test_expected_cases_fail_on_a_faulty_server() -> None:
    server, port = await started(0, _Wrong())
    cases = await run_cases(("127.0.0.1", port), servers.HOST)
    await server.stop(None)
    assert {case for case, problem in cases.items() if problem} == {
        "large_unary",
        "server_streaming",
        "custom_metadata",
        "status_code_and_message",
        "special_status_message",
        "messages_of_4_mib",
        "compressed_both_ways",
    }
    assert cases["large_unary"] == "AssertionError: 1 instead of 314159"
