"""Services with an allow-from rule, by each host and listener, over real sockets."""

import base64

import msgspec
import pytest

from serving.activator.routing.sites import Listener
from serving.core.model.identities import CallerIdentity
from serving.core.model.knative import ALLOW_FROM_ANNOTATION
from serving.net.cluster.kinds import CLUSTER_DOMAIN_CLAIM, DOMAIN_MAPPING, ROUTE
from serving.net.wire.tokens import caller_token
from tests.eventually import until
from tests.integration.activator_stage import KEY, Stage, send_request, staged
from tests.integration.test_domain_mapping import CLAIM, HOST, MAPPING, SERVED

WHOLE = {"revisionName": "hello-00001", "percent": 100}
RULE = {ALLOW_FROM_ANNOTATION: "namespace/team, serviceaccount/shop/cart, service/shop/front"}
# Tokens are made when the tests are collected.
FAR_S = 9e9
INNER = "hello.default.svc.cluster.local"
REVISION = ["Knative-Serving-Namespace: default", "Knative-Serving-Revision: hello-00001"]


def token(
    namespace: str, account: str = "default", service: str = "", *, key: bytes = KEY, until_s: float = FAR_S
) -> str:
    caller = CallerIdentity(namespace=namespace, account=account, service=service)
    return caller_token(key, caller, until_s=until_s)


def named(text: str) -> list[str]:
    return [f"X-Serving-Caller: {text}"]


FRONT, STRANGER = named(token("shop", service="front")), named(token("shop", service="other"))


async def served(stage: Stage, annotations: dict[str, str] = RULE) -> None:
    await stage.revision("hello-00001", slots=0)
    await stage.route(WHOLE, annotations=annotations)
    await stage.pod_seen("pod")


async def test_every_host_of_service_requires_an_allowed_caller() -> None:
    async with staged() as stage:
        await served(stage)
        await stage.cluster.create(DOMAIN_MAPPING, MAPPING)
        await stage.cluster.patch(DOMAIN_MAPPING, "default", HOST, patch={"status": SERVED}, subresource="status")
        await stage.cluster.create(CLUSTER_DOMAIN_CLAIM, CLAIM)
        await until(lambda: stage.activator.ingress.routes.find(Listener.PUBLIC, HOST) is not None)
        entrances = [
            (stage.public, "hello.default.localhost", []),
            (stage.public, HOST, []),
            (stage.inner, INNER, []),
            (stage.inner, "hello.default", []),
            (stage.inner, "hello-00001.default", []),
            (stage.inner, "any", REVISION),
        ]
        for address, host, headers in entrances:
            for caller_headers in ([], STRANGER):
                refused = await send_request(address, host=host, headers=[*headers, *caller_headers])
                assert refused.status == 403, (host, caller_headers)
            assert (await send_request(address, host=host, headers=[*headers, *FRONT])).body == "pod", host
        assert not any("x-serving-caller" in head.lower() for head in stage.pods[0].heads)


async def test_second_activator_enforces_the_same_callers() -> None:
    async with staged() as stage, staged(cluster=stage.cluster) as other:
        await served(stage)
        await until(lambda: other.activator.ingress.routes.find(Listener.INNER, INNER))
        await until(lambda: other.activator.ingress.router.directory.pods_of(("default", "hello-00001")))
        assert (await send_request(other.inner, host=INNER, headers=STRANGER)).status == 403
        assert (await send_request(other.inner, host=INNER, headers=FRONT)).body == "pod"


@pytest.mark.parametrize(
    ("caller", "status"),
    [
        (token("team"), 200),
        (token("shop", "cart"), 200),
        (token("shop", "default"), 403),
        (token("default"), 403),
    ],
)
async def test_caller_is_matched_by_namespace_or_account(caller: str, status: int) -> None:
    async with staged() as stage:
        await served(stage)
        assert (await send_request(stage.inner, host=INNER, headers=named(caller))).status == status


def forged() -> str:
    """A token of a caller that is not allowed, with its claims replaced by those of an allowed one."""
    version, _, signature = token("default").split(".")
    claims = msgspec.json.encode({"namespace": "team", "account": "default", "service": "", "until_s": 9e9})
    return f"{version}.{base64.urlsafe_b64encode(claims).decode()}.{signature}"


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (named(token("team", until_s=1.0)), "expired"),
        (named(token("team", key=bytes(32))), "not signed by this cluster"),
        (named(forged()), "not signed by this cluster"),
        (named(token("team")) * 2, "once"),
        (named("v1.x"), "not signed"),
        (named("v1.a/b.c"), "not a caller token"),
        (named("v2." + token("team")[3:]), "not a caller token"),
        (named(""), "not a caller token"),
        (named("\xff"), "not a caller token"),
    ],
)
async def test_invalid_caller_token_is_rejected_with_reason(headers: list[str], why: str) -> None:
    async with staged() as stage:
        await served(stage)
        refused = await send_request(stage.inner, host=INNER, headers=headers)
        assert refused.status == 403
        assert why in refused.body
        assert not stage.pods[0].heads


async def test_changed_rule_applies_to_next_request() -> None:
    async with staged() as stage:
        await served(stage)
        assert (await send_request(stage.inner, host=INNER, headers=FRONT)).status == 200
        routes = stage.activator.ingress.routes
        turn = routes.turn
        patch = {"metadata": {"annotations": {ALLOW_FROM_ANNOTATION: "namespace/none"}}}
        await stage.cluster.patch(ROUTE, "default", "hello", patch=patch)
        await until(lambda: routes.turn > turn)
        assert (await send_request(stage.inner, host=INNER, headers=FRONT)).status == 403


async def test_invalid_rule_denies_all_callers() -> None:
    async with staged() as stage:
        await served(stage, {ALLOW_FROM_ANNOTATION: "shop"})
        assert (await send_request(stage.inner, host=INNER, headers=FRONT)).status == 403


async def test_service_without_rule_admits_everyone_and_hides_caller_token() -> None:
    async with staged() as stage:
        await served(stage, {})
        assert (await send_request(stage.inner, host=INNER, headers=FRONT)).status == 200
        assert (await send_request(stage.inner, host=INNER)).status == 200
        assert not any("x-serving-caller" in head.lower() for head in stage.pods[0].heads)


@pytest.mark.parametrize(("annotations", "inner", "public"), [({}, 403, 200), ({ALLOW_FROM_ANNOTATION: "*"}, 200, 200)])
async def test_service_without_rule_rejects_inner_callers_if_denied_by_default(
    annotations: dict[str, str], inner: int, public: int
) -> None:
    async with staged(deny_by_default=True) as stage:
        await served(stage, annotations)
        assert (await send_request(stage.public)).status == public
        for host, headers in ((INNER, []), ("hello-00001.default", []), ("any", REVISION)):
            assert (await send_request(stage.inner, host=host, headers=headers)).status == inner, host
