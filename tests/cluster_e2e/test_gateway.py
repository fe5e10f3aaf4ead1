"""HTTPRoutes of routes, a Gateway that accepts or refuses them, and requests through it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import yaml

from serving.core.model.objects import Object, condition_of
from serving.net.cluster.kinds import ENDPOINT_SLICE, EVENT, HTTP_ROUTE, ROUTE
from serving.tools.cli.client.tree import tree_folder
from tests.cluster_e2e.gateway import GATEWAY, PretendedGateway, accepted, asked, refused
from tests.cluster_e2e.server import SPACE, is_real
from tests.cluster_e2e.stage import Stage, service
from tests.cluster_e2e.with_pods import COMMAND, QUEUE_PORT, send_get, with_pods

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(is_real(), reason="a real server has the Gateway API only where it was installed"),
]

(RULE,) = next(yaml.safe_load_all((tree_folder() / "components" / "gateway" / "rbac.yaml").read_text()))["rules"]
GRANTED: list[str] = RULE["verbs"]
ALWAYS = {**COMMAND, "autoscaling.knative.dev/min-scale": "1"}
SPLIT: list[Object] = [
    {"revisionName": "both-00001", "percent": 25, "tag": "old"},
    {"latestRevision": True, "percent": 75},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with with_pods(tmp_path_factory.mktemp("gateway"), SERVING_CONTROLLER_GATEWAY=GATEWAY) as pods:
        yield pods


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(stage: Stage) -> AsyncIterator[PretendedGateway]:
    pretended_gateway = PretendedGateway(stage.cluster, SPACE)
    running = asyncio.create_task(pretended_gateway.run())
    yield pretended_gateway
    running.cancel()


def host(name: str) -> str:
    return f"{name}.{SPACE}.localhost"


def backends(resource: Object) -> list[dict[str, int]]:
    """The weights by Service of each rule."""
    return [{ref["name"]: ref["weight"] for ref in rule["backendRefs"]} for rule in resource["spec"]["rules"]]


async def split(stage: Stage, name: str = "both") -> None:
    """A service with two revisions; the first has a quarter of the traffic and a tag."""
    await stage.apply(service(name, annotations=ALWAYS))
    await stage.ready(name)
    traffic = [{**SPLIT[0], "revisionName": f"{name}-00001"}, SPLIT[1]]
    changed = await stage.apply(service(name, version="2", annotations=ALWAYS, traffic=traffic))
    await stage.ready(name, generation=changed["metadata"]["generation"])


@pytest.mark.usefixtures("gateway")
async def test_a_route_becomes_httproutes_which_follow_its_traffic_and_go_with_it(stage: Stage) -> None:
    await split(stage)
    own = await stage.cluster.get(HTTP_ROUTE, SPACE, "both")
    assert own["spec"]["hostnames"] == [host("both")]
    assert backends(own) == [{"both-00001": 100}, {"both-00001": 25, "both-00002": 75}]
    tagged = await stage.cluster.get(HTTP_ROUTE, SPACE, "both.old")
    assert (tagged["spec"]["hostnames"], backends(tagged)) == ([host("old-both")], [{"both-00001": 100}])
    changed = await stage.apply(
        service("both", version="2", annotations=ALWAYS, traffic=[{"latestRevision": True, "percent": 100}])
    )
    await stage.ready("both", generation=changed["metadata"]["generation"])
    await stage.until(HTTP_ROUTE, "both", lambda http_route: backends(http_route) == [{"both-00002": 100}])
    await stage.until_gone(HTTP_ROUTE, "both.old")
    await stage.clear()
    await stage.until_none(HTTP_ROUTE)


async def test_a_route_is_ready_when_the_gateway_says_so(stage: Stage) -> None:
    gateway = PretendedGateway(stage.cluster, SPACE)
    gateway.verdict = refused
    await stage.apply(service("asked", annotations=ALWAYS))
    http_route = await stage.until(HTTP_ROUTE, "asked", bool)
    waiting = await stage.until(
        ROUTE, "asked", lambda route: condition_of(route, "IngressReady").get("reason") == "HTTPRouteNotReady"
    )
    assert condition_of(waiting, "Ready")["status"] == "Unknown"
    await gateway.report(http_route)
    reason = "NotAllowedByListeners"
    await stage.until(ROUTE, "asked", lambda route: condition_of(route, "Ready").get("reason") == reason)
    async with asyncio.timeout(240):
        while not (items := (await stage.cluster.list(EVENT, SPACE, field_selector=f"reason={reason}")).items):  # noqa: ASYNC110 - a list is polled
            await asyncio.sleep(0.05)
    assert GATEWAY in items[0]["message"]
    gateway.verdict = accepted
    await gateway.report(await stage.cluster.get(HTTP_ROUTE, SPACE, "asked"))
    await stage.ready("asked")


@pytest.mark.parametrize("path", ["proxy", "serve"])
async def test_requests_go_where_the_weights_and_tags_say_by_activators_and_to_pods(
    stage: Stage, gateway: PretendedGateway, path: str
) -> None:
    burst = {"autoscaling.knative.dev/target-burst-capacity": "-1" if path == "proxy" else "0"}
    name = f"by-{path}"
    await stage.apply(service(name, annotations={**ALWAYS, **burst}))
    await stage.ready(name)
    traffic = [{**SPLIT[0], "revisionName": f"{name}-00001"}, SPLIT[1]]
    changed = await stage.apply(service(name, version="2", annotations={**ALWAYS, **burst}, traffic=traffic))
    await stage.ready(name, generation=changed["metadata"]["generation"])
    port = stage.port("inner") if path == "proxy" else QUEUE_PORT
    for number in (1, 2):
        await stage.until(
            ENDPOINT_SLICE,
            f"{name}-0000{number}-public",
            lambda endpoint_slice: endpoint_slice["ports"][0]["port"] == port,
        )
    # The activator hears of a host a moment after it is ready.
    for known in (name, f"old-{name}"):
        await send_get(stage, known)
    # All by the same one: once in ten billion times.
    responses = [await gateway.send_get(host(name)) for _ in range(80)]
    assert {backend for backend, _, _ in responses} == {f"{name}-00001", f"{name}-00002"}
    responses += [
        await gateway.send_get(host(name), headers={"Knative-Serving-Tag": "old"}),
        await gateway.send_get(host(f"old-{name}")),
        await gateway.send_get(
            host(name), headers={"knative-serving-revision": "no-such", "Knative-Serving-Namespace": "x"}
        ),
    ]
    assert [backend for backend, _, _ in responses[-3:-1]] == [f"{name}-00001"] * 2
    # The chosen revision answers: no component decides a second time.
    assert [(status, f"from {backend}," in body) for backend, status, body in responses] == [(200, True)] * len(
        responses
    )


@pytest.mark.usefixtures("gateway")
async def test_a_named_revision_is_believed_inside_and_nowhere_else(stage: Stage) -> None:
    await split(stage, "named")
    for known in ("named", "old-named"):
        await send_get(stage, known)
    names = [f"Knative-Serving-Namespace: {SPACE}", "Knative-Serving-Revision: named-00001"]
    for _ in range(6):
        # Three of four would go elsewhere by weight.
        status, body = await asked("127.0.0.1", stage.port("inner"), host=host("named"), lines=names)
        assert (status, "from named-00001," in body) == (200, True)
        # The tag's host is the other's: by the world's word nothing changes.
        other = [names[0], "Knative-Serving-Revision: named-00002"]
        status, body = await asked("127.0.0.1", stage.port("public"), host=host("old-named"), lines=other)
        assert (status, "from named-00001," in body) == (200, True)
    unknown = [names[0], "Knative-Serving-Revision: named-00009"]
    assert (await asked("127.0.0.1", stage.port("inner"), host=host("named"), lines=unknown))[0] == 404
    # Without a name the inner listener knows no public host.
    assert (await asked("127.0.0.1", stage.port("inner"), host=host("named"), lines=[]))[0] == 404


@pytest.mark.usefixtures("gateway")
async def test_the_controller_needs_the_rights_of_the_component_and_no_others(stage: Stage) -> None:
    await split(stage, "rights")
    changed = await stage.apply(
        service("rights", version="2", annotations=ALWAYS, traffic=[{"latestRevision": True, "percent": 100}])
    )
    await stage.ready("rights", generation=changed["metadata"]["generation"])
    await stage.until_gone(HTTP_ROUTE, "rights.old")
    calls = {call for call in stage.daemons["controller"].calls if "gateway.networking" in call}
    assert calls == {f"{verb} httproutes.gateway.networking.k8s.io" for verb in GRANTED}
