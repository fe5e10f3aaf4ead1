"""gRPC under ``serving up``: a grpcio sample app, and grpcio's client."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import grpc  # type: ignore[import-untyped]  # it has no types
import grpc.aio  # type: ignore[import-untyped]
import pytest

from serving.core.model.objects import Object
from serving.net.cluster.kinds import POD, SERVING_SERVICE
from serving.tools.samples import grpc_echo
from tests.e2e.test_up import Up, cluster_of, running, until_ready

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

# A whole pod may have to start for the first call.
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("grpc") / "state") as up:
        yield up


def service(name: str, slots: int, annotations: dict[str, str], *, port: str) -> Object:
    command = f"{sys.executable} {grpc_echo.__file__}"
    container = {"image": "echo", "ports": [{"containerPort": 8080, **({"name": port} if port else {})}]}
    template = {
        "metadata": {"annotations": {"serving.dev/command": command, **annotations}},
        "spec": {"containerConcurrency": slots, "containers": [container]},
    }
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": template},
    }


async def created(
    up: Up, name: str, annotations: dict[str, str] | None = None, *, slots: int = 0, port: str = "h2c"
) -> None:
    async with cluster_of(up) as cluster:
        await cluster.create(SERVING_SERVICE, service(name, slots, annotations or {}, port=port))
        await until_ready(cluster, name)
    async with channel(up, name) as at, asyncio.timeout(60):
        # The activator knows the service a moment later.
        while (await status_of(at)) is grpc.StatusCode.UNIMPLEMENTED:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.05)


def channel(up: Up, name: str) -> grpc.aio.Channel:
    """A channel of one connection."""
    options = (("grpc.default_authority", f"{name}.default.localhost"),)
    return grpc.aio.insecure_channel(f"127.0.0.1:{up.port}", options=options)


def method(name: str) -> str:
    return f"/{grpc_echo.SERVICE}/{name}"


def call(at: grpc.aio.Channel, name: str, request: bytes, deadline_s: float = DEADLINE_S) -> Any:  # noqa: ANN401 - grpcio's own
    return at.unary_unary(method(name))(request, timeout=deadline_s)


async def status_of(at: grpc.aio.Channel) -> grpc.StatusCode:
    try:
        await call(at, "Say", b"")
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize(("name", "port"), [("kinds", "h2c"), ("unnamed", "")])
async def test_grpc_calls_of_every_kind_work_with_deadlines_and_cancellation(up: Up, name: str, port: str) -> None:
    """Independent of the port's name: gRPC calls always reach the app over HTTP/2."""
    await created(up, name, port=port)
    async with channel(up, name) as at:
        response = call(at, "Say", b"one")
        assert await response == b"one"
        assert ("revision", f"{name}-00001") in tuple(await response.trailing_metadata())
        assert [reply async for reply in at.unary_stream(method("Repeat"))(b"x", timeout=DEADLINE_S)] == [b"x"] * 3
        assert await at.stream_unary(method("Join"))(iter([b"a", b"b"]), timeout=DEADLINE_S) == b"ab"
        chat = at.stream_stream(method("Chat"))(timeout=DEADLINE_S)
        for message in (b"1", b"2", b"3"):
            # Each response arrives before the next message is sent.
            await chat.write(message)
            assert await chat.read() == message
        await chat.done_writing()
        assert await chat.read() is grpc.aio.EOF
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(at, "Refuse", b"nothing here")
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.NOT_FOUND, "nothing here")
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await call(at, "Wait", b"60", deadline_s=0.5)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(60):
            # The app does not count a call that is cancelled before it arrives.
            while int(await call(at, "Cancelled", b"")) < 2:
                waiting = asyncio.ensure_future(call(at, "Wait", b"60"))
                await asyncio.sleep(0.2)
                waiting.cancel()


async def test_unknown_host_is_reported_as_grpc_unimplemented(up: Up) -> None:
    async with channel(up, "nobody") as at:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(at, "Say", b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "nobody.default.localhost" in (refused.value.details() or "")


async def test_concurrency_limit_applies_to_streams_of_one_connection(up: Up) -> None:
    await created(up, "single", {"autoscaling.knative.dev/max-scale": "1"}, slots=1)
    async with channel(up, "single") as at:
        responses = await asyncio.gather(*[call(at, "Wait", b"0.05") for _ in range(8)])
    assert set(responses) == {b"1"}


async def test_grpc_call_wakes_a_service_from_zero(up: Up) -> None:
    await created(up, "asleep", {"autoscaling.knative.dev/window": "6s"})
    async with channel(up, "asleep") as at:
        async with cluster_of(up) as cluster:
            while await pods_of(cluster, "asleep"):  # noqa: ASYNC110 - short of a watch
                await asyncio.sleep(0.1)
        response = call(at, "Say", b"good morning")
        assert await response == b"good morning"
        assert ("x-serving-cold-start", "true") in tuple(await response.initial_metadata())


async def test_concurrent_streams_of_one_connection_scale_up(up: Up) -> None:
    await created(up, "busy", {"autoscaling.knative.dev/target": "2", "autoscaling.knative.dev/window": "6s"})
    async with channel(up, "busy") as at, cluster_of(up) as cluster:
        calls = [call(at, "Wait", b"50") for _ in range(10)]
        async with asyncio.timeout(60):
            while len(await pods_of(cluster, "busy")) < 2:  # noqa: ASYNC110 - short of a watch
                await asyncio.sleep(0.1)
        for task in calls:
            task.cancel()


async def pods_of(cluster: Any, name: str) -> list[Object]:  # noqa: ANN401 - a KubeCluster
    return [pod for pod in (await cluster.list(POD, "default")).items if name in pod["metadata"]["name"]]
