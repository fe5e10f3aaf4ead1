"""Prefix affinity: the activator selects the pod that has processed the prefix of a prompt, over real sockets."""

import asyncio
import gzip
import json

import pytest

from serving.core.model.knative import AFFINITY_ANNOTATION
from tests.eventually import until
from tests.integration.activator_stage import HOST, HttpResponse, Stage, send_request, staged

_WHOLE = {"revisionName": "hello-00001", "percent": 100}
_TARGET = "/v1/chat/completions"
_PODS = ("one", "two", "three")


async def served(stage: Stage) -> None:
    await stage.revision("hello-00001", slots=0)
    await stage.route(_WHOLE, annotations={AFFINITY_ANNOTATION: "prefix"})
    for pod in _PODS:
        await stage.pod_seen(pod)


def chat(*texts: str) -> str:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text} for text in texts]})


async def send_chat(stage: Stage, *texts: str) -> HttpResponse:
    return await send_request(stage.public, _TARGET, method="POST", body=chat(*texts))


async def test_conversation_stays_on_the_pod_with_its_prefix_until_pod_is_removed() -> None:
    async with staged() as stage:
        await served(stage)
        turns: dict[str, list[str]] = {}
        homes: dict[str, str] = {}
        name = ""
        # The hash of a prompt selects its pod.
        while set(homes.values()) != set(_PODS):
            name = f"conversation {len(turns)}"
            turns[name] = [f"{name} begins " * 100]
            homes[name] = (await send_chat(stage, *turns[name])).body
        for turn in range(3):
            for name, texts in turns.items():
                texts.append(f"{name} says {turn} ")
                assert (await send_chat(stage, *texts)).body == homes[name]
        page = stage.activator.ingress.metrics.page.text("")
        labels = 'k8s_namespace_name="default",kn_configuration_name="",kn_revision_name="hello-00001"'
        assert f'serving_prefix_requests_total{{{labels},result="hit"}} {3.0 * len(turns)}' in page
        assert f'serving_prefix_requests_total{{{labels},result="miss"}} {float(len(turns))}' in page
        # The autoscaler receives the cache hits per pod, so that it can retain the best pods.
        await until(lambda: any(set(stat.pod_heats) == set(_PODS) for stat in stage.autoscaler.stats))
        await stage.remove_pod(homes[name])
        pods_of = stage.activator.ingress.router.directory.pods_of
        await until(lambda: len(pods_of(("default", "hello-00001"))) == 2)
        moved = {(await send_chat(stage, *turns[name])).body for _ in range(3)}
        assert len(moved) == 1
        assert homes[name] not in moved


async def test_conversation_moves_to_another_pod_while_its_pod_is_busy() -> None:
    async with staged() as stage:
        await served(stage)
        text = "begins " * 1000
        name = (await send_chat(stage, text)).body
        home = next(pod for pod in stage.pods if pod.name == name)
        home.gate.clear()
        # No other pod has the prefix, so waiting is still better for a second request.
        waiting = [asyncio.create_task(send_chat(stage, text)) for _ in range(2)]
        await until(lambda: home.running_count == 2)
        assert (await send_chat(stage, text)).body != home.name
        home.gate.set()
        assert {(await task).body for task in waiting} == {home.name}


@pytest.mark.parametrize(
    "body",
    [
        b"no JSON" * 1000,
        gzip.compress(chat("a" * 9000).encode()),
        b'{"messages":' + b"[" * 100_000,
        b"",
        b"\xff" * 200_000,
    ],
    ids=["text", "gzip", "deep", "empty", "large"],
)
async def test_any_body_is_forwarded_with_prefix_affinity(body: bytes) -> None:
    async with staged() as stage:
        await served(stage)
        reader, writer = await asyncio.open_connection(*stage.public)
        writer.write(b"POST %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n" % (_TARGET.encode(), HOST.encode()))
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()


async def test_chunked_and_slow_bodies_do_not_block_other_requests() -> None:
    async with staged() as stage:
        await served(stage)
        head = b"POST / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n" % HOST.encode()
        stream, stream_writer = await asyncio.open_connection(*stage.public)
        # A chunked body is forwarded from its first byte.
        stream_writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        assert (await stream.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        _, slow_writer = await asyncio.open_connection(*stage.public)
        slow_writer.write(head + b'Content-Length: 60000\r\n\r\n{"messages":')
        await until(lambda: stage.level <= 1)
        assert (await send_chat(stage, "a" * 1000)).status == 200
        slow_writer.close()
        stream_writer.close()
