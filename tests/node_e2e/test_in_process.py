"""Cold starts on a node with the queue-proxy beside an app and in its process, in turns.

``SERVING_TEST_NODE_ASGI_IMAGE`` names an image that the nodes have, with ``serving[asgi]`` and Python as its
``python``; without it there is no such test.
"""

import os
import statistics
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from serving.core.model.objects import Object
from tests.node_e2e.stage import NodeStage, installed, is_named, service

_IMAGE = os.environ.get("SERVING_TEST_NODE_ASGI_IMAGE", "")
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not is_named(), reason="needs a cluster with nodes: SERVING_TEST_NODE_KUBECONFIG names none"),
    pytest.mark.skipif(not _IMAGE, reason="SERVING_TEST_NODE_ASGI_IMAGE names no image with serving[asgi]"),
]

PLACES = ("beside", "in-process")
TURNS = 10
# The annotation saves a container. More than this ratio would mean that it costs time, whatever the machine does
# besides.
RATIO_MAX = 1.1
_APP = """
async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""
# As `python -m serving.asgi app:app`, with the app from here instead of a file.
_START = f"""
import sys, types
app = types.ModuleType("app")
exec({_APP!r}, app.__dict__)
sys.modules["app"] = app
from serving.asgi import main
sys.exit(main(["app:app"]))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NodeStage]:
    """An installation without any setting, so that inner TLS is strict."""
    async with installed(tmp_path_factory.mktemp("in-process")) as node_stage:
        yield node_stage


def of_place(place: str) -> Object:
    """A service of the same app with its queue-proxy at a place."""
    resource = service(place, _IMAGE)
    template = resource["spec"]["template"]
    template["metadata"]["annotations"]["serving.dev/queue-proxy"] = place
    template["spec"]["containers"][0]["command"] = ["python", "-c", _START]
    return resource


async def test_an_app_that_is_its_own_queue_proxy_starts_no_later(stage: NodeStage) -> None:
    for place in PLACES:
        stage.apply(of_place(place))
        await stage.ready(place)
    counts = {place: len(stage.pods(place)[0]["spec"]["containers"]) for place in PLACES}
    assert counts == {"beside": 2, "in-process": 1}
    took_ms: dict[str, list[float]] = {place: [] for place in PLACES}
    async with aiohttp.ClientSession() as session:
        for _ in range(TURNS):
            for place in PLACES:
                await stage.at_zero(place)
                begun_s = time.monotonic()
                assert await stage.send(place, session=session) == (200, "ok")
                took_ms[place].append((time.monotonic() - begun_s) * 1000)
    medians = {place: statistics.median(took_ms[place]) for place in PLACES}
    for place in PLACES:
        print(f"{place}: p50 {medians[place]:.0f} ms, max {max(took_ms[place]):.0f} ms of {TURNS}")  # noqa: T201 - what -s shows
    assert medians["in-process"] <= medians["beside"] * RATIO_MAX
