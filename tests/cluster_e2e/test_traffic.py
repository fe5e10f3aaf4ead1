"""Requests through the activator to pods that are processes of this machine, over the API of a cluster."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from serving.core.model.objects import Object, condition_of
from serving.net.cluster.kinds import DEPLOYMENT, ENDPOINT_SLICE, REVISION, SERVING_SERVICE
from tests.cluster_e2e.server import SPACE
from tests.cluster_e2e.stage import ACTIVATOR_ADDRESSES, Stage, service
from tests.cluster_e2e.with_pods import COMMAND, QUEUE_PORT, asked, send_get, with_pods

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
]
FAILS_IN_VERSION_2 = """
import http.server, os

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(500 if os.environ["VERSION"] == "2" else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with with_pods(tmp_path_factory.mktemp("traffic")) as pods:
        yield pods


async def test_a_request_reaches_a_pod_and_one_for_a_revision_at_zero_wakes_it(stage: Stage) -> None:
    await stage.apply(service("hello", annotations=COMMAND))
    await stage.ready("hello")
    assert (await send_get(stage, "hello"))[0] == 200
    await stage.until(REVISION, "hello-00001", lambda revision: revision["spec"].get("servingState") == "Reserve")
    await stage.scaled("hello-00001", 0)
    status, _ = await send_get(stage, "hello")
    assert status == 200
    await stage.until(DEPLOYMENT, "hello-00001-deployment", lambda deployment: deployment["spec"]["replicas"] >= 1)


async def test_requests_are_split_between_revisions(stage: Stage) -> None:
    always = {**COMMAND, "autoscaling.knative.dev/min-scale": "1"}
    await stage.apply(service("both", annotations=always))
    await stage.ready("both")
    traffic = [{"revisionName": "both-00001", "percent": 50, "tag": "old"}, {"latestRevision": True, "percent": 50}]
    changed = await stage.apply(service("both", version="2", annotations=always, traffic=traffic))
    await stage.ready("both", generation=changed["metadata"]["generation"])
    bodies = [(await send_get(stage, "both"))[1] for _ in range(40)]
    # All 40 by the same one: once in 550 billion times.
    assert {body.split(" from ")[1].split(",")[0] for body in bodies} == {"both-00001", "both-00002"}
    assert "from both-00001," in (await send_get(stage, "old-both"))[1]


async def test_many_requests_at_once_are_all_answered_while_pods_are_added(stage: Stage) -> None:
    await stage.apply(service("many", annotations=COMMAND))
    await stage.ready("many")
    responses = await asyncio.gather(*[send_get(stage, "many") for _ in range(40)])
    assert {status for status, _ in responses} == {200}


async def test_a_rollout_goes_back_by_the_responses_that_activators_count(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(FAILS_IN_VERSION_2)
    command = {"serving.dev/command": f"{sys.executable} {tmp_path / 'app.py'}"}
    first, second = (
        service("checked", version=version, annotations={**command, "autoscaling.knative.dev/min-scale": "1"})
        for version in ("1", "2")
    )
    first["metadata"]["annotations"] = {
        "serving.knative.dev/rollout-duration": "4s",
        "serving.dev/rollout-check": "errors<5%",
    }
    await stage.apply(first)
    await stage.ready("checked")
    await stage.apply(second)

    async def load() -> None:
        while True:
            await asyncio.gather(*[send_get(stage, "checked") for _ in range(10)])

    loading = asyncio.create_task(load())
    current_service = await stage.until(
        SERVING_SERVICE,
        "checked",
        lambda service_object: condition_of(service_object, "Ready").get("reason") == "RolledBack",
    )
    loading.cancel()
    assert 'Revision "checked-00002" is rolled back by errors<5%: ' in condition_of(current_service, "Ready")["message"]
    assert [(target["revisionName"], target["percent"]) for target in current_service["status"]["traffic"]] == [
        ("checked-00001", 100)
    ]


@pytest.mark.parametrize(("name", "names_pods"), [("direct", False), ("direct-00001", True)])
async def test_every_address_of_a_public_slice_responds(stage: Stage, name: str, *, names_pods: bool) -> None:
    at_once = {"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/target-burst-capacity": "0"}
    await stage.apply(service("direct", annotations={**COMMAND, **at_once}))
    await stage.ready("direct")
    port = QUEUE_PORT if names_pods else stage.port("inner")

    def is_flipped(container: Object) -> bool:
        return bool(container["ports"][0]["port"] == port)

    endpoint_slice = await stage.until(ENDPOINT_SLICE, f"{name}-public", is_flipped)
    named = [address for endpoint in endpoint_slice["endpoints"] for address in endpoint["addresses"]]
    if names_pods:
        # Pods of this machine are told to be in 10.64.0.0/16, and are in 127.64.0.0/16.
        (address,) = [f"127.{each.partition('.')[2]}" for each in named]
    else:
        assert set(named) == set(ACTIVATOR_ADDRESSES)
        address = "127.0.0.1"
    # The activator has heard of it.
    await send_get(stage, "direct")
    status, body = await asked(port, f"{name}.{SPACE}", address=address)
    assert status == 200
    assert "from direct-00001," in body
