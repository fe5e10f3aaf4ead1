"""Private services, session affinity, routing by header, the placeholder page and short hosts, over real sockets."""

import asyncio
import socket
from collections import Counter

import msgspec
import pytest

from serving.core.model.knative import (
    ACCESS_ANNOTATION,
    ACCESS_TOKEN_VERSION_ANNOTATION,
    NAMED_PORT_ANNOTATION,
    PLACEHOLDER_PAGE_ANNOTATION,
    ROUTE_BY_HEADER_ANNOTATION,
    SESSION_AFFINITY_ANNOTATION,
)
from serving.core.model.routehosts import named_address
from serving.core.traffic.wrongtokens import COUNT_MAX
from serving.net.cluster.kinds import ROUTE
from serving.net.wire.tokens import access_token
from tests.eventually import until
from tests.integration.activator_stage import KEY, Stage, send_request, staged

_WHOLE = {"revisionName": "hello-00001", "percent": 100}
_TOKEN = access_token(KEY, namespace="default", route="hello")
_ACCEPT = "Accept: text/html,application/xhtml+xml"


async def served(stage: Stage, annotations: dict[str, str], *pods: str, slots: int = 0) -> None:
    await stage.revision("hello-00001", slots=slots)
    await stage.route(_WHOLE, annotations=annotations)
    for pod in pods:
        await stage.pod_seen(pod)


async def test_private_service_requires_its_token_and_hides_it_from_app() -> None:
    async with staged() as stage:
        await served(stage, {ACCESS_ANNOTATION: "private"}, "pod")
        refused = await send_request(stage.public)
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == 'Bearer realm="default/hello"'
        assert (await send_request(stage.public, headers=["Authorization: Bearer wrong"])).status == 401
        assert (await send_request(stage.public, headers=[f"Authorization: Bearer {_TOKEN}"])).body == "pod"
        own = [f"X-Serving-Authorization: Bearer {_TOKEN}", "Authorization: Basic app"]
        assert (await send_request(stage.public, headers=own)).body == "pod"
        seen = stage.pods[0].heads[-1]
        assert "Authorization: Basic app" in seen
        assert _TOKEN not in seen
        assert len(stage.pods[0].heads) == 2


async def test_private_service_requires_token_on_inner_hosts_too() -> None:
    async with staged() as stage:
        await served(stage, {ACCESS_ANNOTATION: "private"}, "pod")
        named = ["Knative-Serving-Namespace: default", "Knative-Serving-Revision: hello-00001"]
        for host in ("hello.default.svc.cluster.local", "hello-00001.default.svc.cluster.local", "hello-00001.default"):
            assert (await send_request(stage.inner, host=host)).status == 401, host
        assert (await send_request(stage.inner, host="any", headers=named)).status == 401
        allowed = await send_request(
            stage.inner, host="hello-00001.default", headers=[f"Authorization: Bearer {_TOKEN}"]
        )
        assert allowed.body == "pod"


async def test_wrong_tokens_are_rate_limited_per_address_but_right_token_is_served() -> None:
    async with staged() as stage:
        await served(stage, {ACCESS_ANNOTATION: "private"}, "pod")
        for _ in range(COUNT_MAX):
            assert (await send_request(stage.public, headers=["Authorization: Bearer guess"])).status == 401
        refused = await send_request(stage.public, headers=["Authorization: Bearer guess"])
        assert (refused.status, 0 < int(refused.headers["retry-after"]) <= 60) == (429, True)
        # A request without a token does not count as wrong; the right token is accepted from the same address.
        assert (await send_request(stage.public)).status == 401
        assert (await send_request(stage.public, headers=[f"Authorization: Bearer {_TOKEN}"])).body == "pod"
        assert f"serving_wrong_tokens_total {COUNT_MAX + 1}" in stage.activator.ingress.metrics.page.text("")


async def test_new_token_version_revokes_the_previous_token() -> None:
    async with staged() as stage:
        await served(stage, {ACCESS_ANNOTATION: "private", ACCESS_TOKEN_VERSION_ANNOTATION: "1"}, "pod")
        first, second = (access_token(KEY, namespace="default", route="hello", version=text) for text in "12")
        assert (await send_request(stage.public, headers=[f"Authorization: Bearer {first}"])).status == 200
        patch = {"metadata": {"annotations": {ACCESS_TOKEN_VERSION_ANNOTATION: "2"}}}
        turn = stage.activator.ingress.routes.turn
        await stage.cluster.patch(ROUTE, "default", "hello", patch=patch)
        await until(lambda: stage.activator.ingress.routes.turn > turn)
        assert (await send_request(stage.public, headers=[f"Authorization: Bearer {first}"])).status == 401
        assert (await send_request(stage.public, headers=[f"Authorization: Bearer {second}"])).status == 200


async def test_session_stays_on_its_pod_until_pod_is_removed() -> None:
    async with staged() as stage:
        await served(stage, {SESSION_AFFINITY_ANNOTATION: "cookie"}, "one", "two", "three")
        first = await send_request(stage.public)
        cookie = "Cookie: " + first.headers["set-cookie"].partition(";")[0]
        responses = [await send_request(stage.public, headers=[cookie]) for _ in range(20)]
        assert {response.body for response in responses} == {first.body}
        assert all("set-cookie" not in response.headers for response in responses)
        await stage.remove_pod(first.body)
        pods_of = stage.activator.ingress.router.directory.pods_of
        await until(lambda: len(pods_of(("default", "hello-00001"))) == 2)
        moved = {(await send_request(stage.public, headers=[cookie])).body for _ in range(10)}
        assert len(moved) == 1
        assert first.body not in moved


async def test_session_by_header_overflows_to_another_pod_while_its_pod_is_full() -> None:
    async with staged() as stage:
        await served(stage, {SESSION_AFFINITY_ANNOTATION: "header:X-User"}, "one", "two", slots=1)
        user = ["X-User: ada"]
        own = (await send_request(stage.public, headers=user)).body
        other = next(pod for pod in stage.pods if pod.name != own)
        server = next(pod for pod in stage.pods if pod.name == own)
        server.gate.clear()
        waiting = asyncio.create_task(send_request(stage.public, headers=user))
        await until(lambda: server.running_count)
        assert (await send_request(stage.public, headers=user)).body == other.name
        server.gate.set()
        assert (await waiting).body == own


async def test_session_stays_on_one_revision_of_a_traffic_split() -> None:
    async with staged() as stage:
        await stage.revision("hello-00001", slots=0)
        await stage.revision("hello-00002", slots=0)
        split = [{"revisionName": f"hello-0000{number}", "percent": 50} for number in (1, 2)]
        await stage.route(*split, annotations={SESSION_AFFINITY_ANNOTATION: "header:X-User"})
        await stage.pod_seen("old")
        await stage.pod_seen("new", of="hello-00002")
        sides = Counter[str]()
        for user in range(30):
            responses = {(await send_request(stage.public, headers=[f"X-User: {user}"])).body for _ in range(3)}
            assert len(responses) == 1
            sides.update(responses)
        assert set(sides) == {"old", "new"}


async def test_header_selects_tagged_revision_also_behind_a_gateway() -> None:
    async with staged() as stage:
        await stage.revision("hello-00001", slots=0)
        await stage.revision("hello-00002", slots=0)
        tagged = {"revisionName": "hello-00002", "tag": "candidate", "percent": 0}
        await stage.route(_WHOLE, tagged, annotations={ROUTE_BY_HEADER_ANNOTATION: "X-Beta=yes:candidate"})
        await stage.pod_seen("old")
        await stage.pod_seen("new", of="hello-00002")
        assert (await send_request(stage.public, headers=["X-Beta: yes"])).body == "new"
        assert (await send_request(stage.public, headers=["X-Beta: no"])).body == "old"
        by_gateway = ["Knative-Serving-Namespace: default", "Knative-Serving-Revision: hello-00001"]
        assert (await send_request(stage.inner, headers=[*by_gateway, "X-Beta: yes"])).body == "new"
        assert (await send_request(stage.inner, headers=by_gateway)).body == "old"
        elsewhere = ["Knative-Serving-Namespace: default", "Knative-Serving-Revision: hello-00009"]
        assert (await send_request(stage.inner, headers=elsewhere)).status == 404


async def test_browser_receives_self_reloading_page_and_other_clients_wait() -> None:
    async with staged() as stage:
        await served(stage, {PLACEHOLDER_PAGE_ANNOTATION: "true"})
        page = await send_request(stage.public, headers=[_ACCEPT])
        assert page.status == 503
        assert page.headers["refresh"] == "1"
        assert page.headers["content-type"].startswith("text/html")
        assert "hello is starting" in page.body
        client = asyncio.create_task(send_request(stage.public, headers=["Accept: application/json"]))
        await until(lambda: stage.level == 1)
        await stage.pod_seen("pod")
        assert (await client).body == "pod"
        assert (await send_request(stage.public, headers=[_ACCEPT])).body == "pod"


async def test_browser_receives_response_if_pod_becomes_ready_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than the start of the pod on any machine.
    monkeypatch.setattr("serving.activator.io.placeholder._PAGE_AFTER_S", 60.0)
    async with staged() as stage:
        await served(stage, {PLACEHOLDER_PAGE_ANNOTATION: "true"})
        browser = asyncio.create_task(send_request(stage.public, headers=[_ACCEPT]))
        await until(lambda: stage.level == 1)
        await stage.pod_seen("pod")
        response = await browser
        assert (response.status, response.body) == (200, "pod")
        assert stage.level == 0


async def test_browser_receives_response_of_slow_app_instead_of_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.activator.io.placeholder._PAGE_AFTER_S", 2.0)
    async with staged() as stage:
        await served(stage, {PLACEHOLDER_PAGE_ANNOTATION: "true"})
        browser = asyncio.create_task(send_request(stage.public, headers=[_ACCEPT]))
        await until(lambda: stage.level == 1)
        pod = await stage.pod_seen("pod")
        pod.gate.clear()
        await until(lambda: pod.running_count)
        # The page is due while the app has the request.
        await asyncio.sleep(2.1)
        pod.gate.set()
        response = await browser
        assert (response.status, response.body) == (200, "pod")


async def test_short_host_is_resolved_in_namespace_of_its_named_address() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port, stop = sock.getsockname()[1], asyncio.Event()
    async with staged() as stage:
        await served(stage, {NAMED_PORT_ANNOTATION: str(port), ACCESS_ANNOTATION: "private"}, "pod")
        named = stage.activator.named
        running = asyncio.create_task(named.serve({"127.0.0.1": ()}, stop))
        default_address, other_address = (
            (named_address("127.0.0.1", namespace), port) for namespace in ("default", "other")
        )
        await until(lambda: _listens(default_address))
        token = [f"Authorization: Bearer {_TOKEN}"]
        for host in (f"hello:{port}", "Hello", "hello.default", "hello.default.svc.cluster.local"):
            assert (await send_request(default_address, host=host, headers=token)).body == "pod", host
        assert f"Host: hello:{port}" in stage.pods[0].heads[0]
        # The short host is as private as the full host, and other listeners do not serve it.
        assert (await send_request(default_address, host="hello")).status == 401
        assert (await send_request(default_address, host="hello-00001", headers=token)).status == 404
        assert (await send_request(default_address, host="", headers=token)).status == 400
        assert (await send_request(stage.inner, host="hello", headers=token)).status == 404
        # Two namespaces that share an address have one listener; a name in both is ambiguous and not served.
        facts = msgspec.structs.replace(next(iter(named.claims.values())), namespace=_sharing("default"))
        named.claims["other/hello"] = facts
        assert (await send_request(default_address, host="hello", headers=token)).status == 404
        assert not _listens(other_address)
        stop.set()
        await running


def _listens(where: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(where) == 0


def _sharing(namespace: str) -> str:
    """Another namespace with the same address."""
    address = named_address("127.0.0.1", namespace)
    return next(text for text in map(str, range(100_000)) if named_address("127.0.0.1", text) == address)
