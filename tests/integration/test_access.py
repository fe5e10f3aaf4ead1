"""Users of the API over a real socket: permissions of each role, and the entries of the audit log."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from click.testing import CliRunner, Result

from serving.core.model.grants import Grant, Role
from serving.core.model.objects import Object
from serving.core.traffic.wrongtokens import COUNT_MAX
from serving.home.admission.admission import admit
from serving.home.admission.namespacerules import NamespaceRules
from serving.home.apiserver import guard
from serving.home.apiserver.accesstokens import new_token
from serving.home.apiserver.audit import AuditLog
from serving.home.store.memory import MemoryCluster
from serving.home.store.requester import ADMIN_USER
from serving.net.aio.clock import wall_s
from serving.net.aio.linefile import LineFile
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import POD, SECRET, Kind
from serving.net.cluster.port import Subresource
from serving.tools.cli.main import main
from tests.eventually import until
from tests.integration.api_server import TOKEN, Served, served
from tests.integration.kubectl import KUBECTLS, Kubectl, Lines, needs_kubectl

TEAM = frozenset({"default"})
MAPS, SECRETS, PODS = (f"/api/v1/namespaces/default/{plural}" for plural in ("configmaps", "secrets", "pods"))
SERVICES = "/apis/serving.knative.dev/v1/namespaces/default/services"
CAN_I = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Users:
    """A served API, its store, and clients with tokens of users."""

    def __init__(self, api: Served, cluster: MemoryCluster, audit: Path) -> None:
        self.api, self.cluster, self.log = api, cluster, audit

    async def token(self, role: str) -> str:
        """Create a user named after its role; return its token."""
        grant = Grant(user=role, role=Role(role), namespaces=TEAM)
        text, secret = new_token(grant, until_s=wall_s() + 3600)
        await self.cluster.create(SECRET, secret)
        return text

    async def call(self, token: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else msgspec.json.encode(body)
        async with (
            aiohttp.ClientSession(self.api.url, headers=headers) as session,
            session.request(method, path, data=data) as response,
        ):
            text = await response.read()
            return response.status, msgspec.json.decode(
                text
            ) if "json" in response.content_type and "watch" not in path else text

    def audited(self, user: str) -> list[dict[str, Any]]:
        """The audit entries of a user so far."""
        lines = self.log.read_bytes().splitlines() if self.log.exists() else []
        return [entry for entry in map(msgspec.json.decode, lines) if entry["user"]["username"] == user]


@contextlib.contextmanager
def audit_log(path: Path) -> Iterator[AuditLog]:
    with LineFile(path, bytes_max=2**20) as file:
        yield AuditLog(file.add)


@pytest.fixture
async def users(tmp_path: Path) -> AsyncIterator[Users]:
    rules: NamespaceRules | None = None

    def apply_rules(
        kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None
    ) -> Object:
        assert rules is not None
        return rules.admit(kind, new, old, subresource=subresource)

    cluster, path = MemoryCluster(admit=admit, rules=apply_rules), tmp_path / "logs" / "audit.log"
    rules = NamespaceRules(cluster.table)
    rules.enforce()
    path.parent.mkdir()
    with audit_log(path) as audit:
        async with served(cluster, tmp_path, logs=Lines(), audit=audit, has_tls=False) as api:
            await cluster.create(
                POD, {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [{"name": "c"}]}}
            )
            yield Users(api, cluster, path)


@pytest.mark.parametrize(
    ("method", "path", "view", "deploy", "admin"),
    [
        ("GET", PODS, 200, 200, 200),
        ("GET", f"{PODS}/p", 200, 200, 200),
        ("GET", f"{PODS}?watch=true&timeoutSeconds=0.05", 200, 200, 200),
        ("GET", f"{PODS}/p/log", 200, 200, 200),
        ("GET", f"{PODS}/p/exec?command=id&stdout=true", 403, 501, 501),
        ("POST", f"{PODS}/p/attach?stdout=true", 403, 501, 501),
        ("GET", f"{PODS}/p/portforward?ports=80", 403, 501, 501),
        ("GET", f"{PODS}/p/proxy/", 403, 403, 501),
        ("GET", SECRETS, 403, 200, 200),
        ("GET", f"{SECRETS}?watch=1&timeoutSeconds=0.05", 403, 200, 200),
        ("GET", f"{SECRETS}/x", 403, 404, 404),
        ("GET", "/api/v1/secrets", 403, 403, 403),
        ("GET", "/api/v1/secrets?fieldSelector=metadata.namespace=default", 403, 403, 403),
        ("GET", "/api/v1/pods", 403, 403, 403),
        ("GET", "/api/v1/namespaces/other/pods", 403, 403, 403),
        ("GET", "/api/v1/namespaces/def%61ult/secrets", 403, 200, 200),
        ("GET", f"/api/v1/namespaces/{system_namespace()}/secrets", 403, 403, 403),
        ("GET", "/api/v1/nodes", 403, 403, 403),
        ("GET", "/api/v1/namespaces", 403, 403, 403),
        ("GET", "/api/v1/namespaces/default", 200, 200, 200),
        ("DELETE", f"{PODS}/q", 403, 404, 404),
        ("DELETE", MAPS, 403, 200, 200),
        ("POST", "/backup/journal", 403, 403, 403),
        ("POST", "/serving/writes", 403, 403, 403),
        ("GET", "/logs/pods/default", 200, 200, 200),
        ("GET", "/logs/pods/other", 403, 403, 403),
        ("GET", "/version", 200, 200, 200),
        ("GET", "/apis/apps/v1", 200, 200, 200),
        ("OPTIONS", PODS, 403, 403, 405),
    ],
)
async def test_each_role_is_limited_to_its_permissions(
    users: Users, method: str, path: str, view: int, deploy: int, admin: int
) -> None:
    results = [(await users.call(await users.token(role), method, path))[0] for role in ("view", "deploy", "admin")]
    assert results == [view, deploy, admin]


async def test_write_beyond_the_role_is_forbidden_with_kubernetes_status(users: Users) -> None:
    body = {"metadata": {"name": "m"}, "data": {"a": "b"}}
    status, reply = await users.call(await users.token("view"), "POST", MAPS, body)
    assert (status, reply["kind"], reply["reason"], reply["code"]) == (403, "Status", "Forbidden", 403)
    assert reply["details"] == {"kind": "configmaps"}
    assert reply["message"].startswith('configmaps is forbidden: User "view" cannot create resource "configmaps"')
    deploy = await users.token("deploy")
    assert (await users.call(deploy, "POST", MAPS, body))[0] == 201
    assert (await users.call(deploy, "POST", "/api/v1/namespaces", {"metadata": {"name": "n"}}))[0] == 403
    assert (await users.call(deploy, "POST", "/api/v1/namespaces/default/resourcequotas", body))[0] == 403


async def test_pod_beyond_baseline_is_forbidden_to_role_deploy(users: Users) -> None:
    container = {"name": "c", "image": "x", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    deployment = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}
    path = "/apis/apps/v1/namespaces/default/deployments"
    status, reply = await users.call(await users.token("deploy"), "POST", path, deployment)
    assert (status, reply["message"]) == (
        403,
        (
            'deployments.apps "d" is forbidden: violates PodSecurity "baseline:latest": non-default capabilities (container "c" must '
            'not include "SYS_ADMIN" in securityContext.capabilities.add)'
        ),
    )
    assert (await users.call(await users.token("admin"), "POST", path, deployment))[0] == 201


async def test_token_secret_created_by_user_grants_no_access(users: Users) -> None:
    _, secret = new_token(Grant(user="own", role=Role.ADMIN), until_s=wall_s() + 60)
    path = f"/api/v1/namespaces/{system_namespace()}/secrets"
    for role in ("deploy", "admin"):
        assert (await users.call(await users.token(role), "POST", path, secret))[0] == 403
    in_default_namespace = {**secret, "metadata": {**secret["metadata"], "namespace": "default"}}
    assert (await users.call(TOKEN, "POST", SECRETS, in_default_namespace))[0] == 201
    assert (await users.call("own.x", "GET", PODS))[0] == 401


async def test_namespace_user_needs_claim_to_map_a_host(users: Users) -> None:
    mappings = "/apis/serving.knative.dev/v1beta1/namespaces/default/domainmappings"
    body = {
        "metadata": {"name": "packages.example"},
        "spec": {"ref": {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "s"}},
    }
    for role in ("deploy", "admin"):
        status, reply = await users.call(await users.token(role), "POST", mappings, body)
        assert status == 403
        assert f'User "{role}" cannot claim hosts; expected a ClusterDomainClaim' in reply["message"]
    assert (await users.call(TOKEN, "POST", mappings, body))[0] == 201


async def test_creator_annotation_names_the_user(users: Users) -> None:
    body = {"metadata": {"name": "s"}, "spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}}
    _, resource = await users.call(await users.token("deploy"), "POST", SERVICES, body)
    assert resource["metadata"]["annotations"]["serving.knative.dev/creator"] == "deploy"


async def test_self_subject_access_review_reports_permissions_of_user(users: Users) -> None:
    view = await users.token("view")
    for resource, is_allowed in (("pods", True), ("secrets", False)):
        request_count = {"spec": {"resourceAttributes": {"verb": "get", "resource": resource, "namespace": "default"}}}
        status, reply = await users.call(view, "POST", CAN_I, request_count)
        assert (status, reply["status"]["allowed"]) == (201, is_allowed)
    assert (await users.call(view, "POST", CAN_I, {}))[0] == 400
    assert (await users.call(view, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", {}))[0] == 403


async def test_impersonation_is_not_implemented(users: Users) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Impersonate-User": "ann"}
    async with aiohttp.ClientSession(users.api.url, headers=headers) as session, session.get(PODS) as response:
        assert response.status == 501


async def test_watch_ends_when_its_token_is_revoked(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_TOKEN_CHECK_S", 0.05)
    headers = {"Authorization": f"Bearer {await users.token('view')}"}
    async with aiohttp.ClientSession(users.api.url, headers=headers) as session:
        async with session.get(f"{PODS}?watch=true") as response:
            assert b"ADDED" in await response.content.readline()
            await users.cluster.delete(SECRET, system_namespace(), "access-token-view")
            async with asyncio.timeout(60):
                with contextlib.suppress(aiohttp.ClientError):
                    await response.content.read()
        async with session.get(PODS) as response:
            assert (response.status, (await response.json())["message"]) == (401, "Unauthorized")

    def stages() -> list[str]:
        return [record["stage"] for record in users.audited("view") if record["verb"] == "watch"]

    await until(lambda: bool(stages()))
    assert stages()[:1] == ["ResponseStarted"]


async def test_audit_log_contains_each_request_and_no_secret(users: Users) -> None:
    deploy = await users.token("deploy")
    body = {"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}}
    await users.call(deploy, "POST", SECRETS, body)
    await users.call(deploy, "GET", f"{SECRETS}/s")
    await users.call(deploy, "GET", "/api/v1/nodes")
    await until(lambda: len(users.audited("deploy")) >= 3)
    results = [
        (record["verb"], (record["objectRef"] or {}).get("name"), record["responseStatus"]["code"])
        for record in users.audited("deploy")
    ]
    assert results == [("create", "s", 201), ("get", "s", 200), ("list", None, 403)]
    text = users.log.read_text()
    assert "hunter2" not in text
    assert deploy.partition(".")[2] not in text


async def test_audit_log_contains_each_write_of_a_batch(users: Users) -> None:
    writes: list[dict[str, Any]] = [
        {"method": "POST", "path": MAPS, "body": {"metadata": {"name": "m"}, "data": {"a": "b"}}},
        {"method": "PATCH", "path": f"{MAPS}/m", "content_type": "application/merge-patch+json", "body": {"data": {}}},
        {"method": "PUT", "path": f"{MAPS}/no", "body": {"metadata": {"name": "no"}}},
        {"method": "PUT", "path": f"{MAPS}/m", "body": {"metadata": {"name": "m"}}},
    ]
    status, reply = await users.call(TOKEN, "POST", "/serving/writes", writes)
    assert (status, [result["status"] for result in reply["results"]]) == (200, [201, 200, 404])
    assert (await users.call(TOKEN, "POST", "/serving/writes", {}))[0] == 400
    await until(lambda: len(users.audited(ADMIN_USER)) >= 5)
    records = users.audited(ADMIN_USER)
    results = [(record["requestURI"], record["verb"], record["responseStatus"]["code"]) for record in records]
    assert results == [
        (MAPS, "create", 201),
        (f"{MAPS}/m", "patch", 200),
        (f"{MAPS}/no", "update", 404),
        ("/serving/writes", "post", 200),
        ("/serving/writes", "post", 400),
    ]


async def test_batch_with_unknown_path_is_rejected_before_its_first_write(users: Users) -> None:
    body = {"metadata": {"name": "m"}}
    writes = [{"method": "POST", "path": path, "body": body} for path in (MAPS, "/api/v1/namespaces/default/nothings")]
    assert (await users.call(TOKEN, "POST", "/serving/writes", writes))[0] == 404
    assert (await users.call(TOKEN, "GET", f"{MAPS}/m"))[0] == 404


async def test_each_write_of_a_batch_has_its_own_field_manager(users: Users) -> None:
    body = {"metadata": {"name": "m"}, "data": {"a": "b"}}
    writes = [{"method": "POST", "path": MAPS, "query": {"fieldManager": "team"}, "body": body}]
    assert (await users.call(TOKEN, "POST", "/serving/writes", writes))[0] == 200
    _, written = await users.call(TOKEN, "GET", f"{MAPS}/m")
    assert [fields["manager"] for fields in written["metadata"]["managedFields"]] == ["team"]


async def test_unwritable_audit_log_does_not_stop_the_api(users: Users) -> None:
    shutil.rmtree(users.log.parent)
    token = await users.token("view")
    for _ in range(3):
        assert (await users.call(token, "GET", PODS))[0] == 200


async def test_token_command_creates_lists_and_revokes_tokens(users: Users, tmp_path: Path) -> None:
    state = ["--state", str(tmp_path)]

    async def run(*words: str, stdin: str = "") -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, [*words, *state], input=stdin)

    result = await run("token", "create", "ann", "--role", "deploy", "--in", "default", "--for", "2h")
    text = result.stdout.strip()
    assert (await users.call(text, "GET", PODS))[0] == 200
    assert (await run("token", "create", "ann", "--role", "view")).exit_code == 1
    listed = msgspec.json.decode((await run("token", "list", "-o", "json")).stdout)
    assert [(entry["name"], entry["role"], entry["namespaces"]) for entry in listed] == [("ann", "deploy", "default")]
    assert text.partition(".")[2] not in (await run("token", "list")).stdout
    own = msgspec.json.decode((await run("kubeconfig", "--token", "-", stdin=text)).stdout)
    assert own["users"][0]["user"] == {"token": text}
    assert (await run("token", "revoke", "ann")).exit_code == 0
    assert (await users.call(text, "GET", PODS))[0] == 401
    assert "there is no token ann" in (await run("token", "revoke", "ann")).output


@pytest.mark.parametrize(
    "words", [["Ann", "--role", "view"], ["a", "--role", "root"], ["a", "--role", "view", "--for", "0d"], ["a"]]
)
async def test_invalid_token_create_arguments_are_a_usage_error(users: Users, tmp_path: Path, words: list[str]) -> None:
    command = ["token", "create", *words, "--state", str(tmp_path)]
    assert (await asyncio.to_thread(CliRunner().invoke, main, command)).exit_code == 2
    assert not [key for key in users.cluster.table(SECRET).objects if key[0] == system_namespace()]


@needs_kubectl
@pytest.mark.parametrize("program", KUBECTLS)
async def test_kubectl_authenticates_with_user_token(program: str, tmp_path: Path) -> None:
    cluster = MemoryCluster(admit=admit)
    async with served(cluster, tmp_path, logs=Lines(), has_tls=True) as api:
        token = await Users(api, cluster, tmp_path).token("deploy")
        own = msgspec.json.decode(api.kubeconfig.read_bytes())
        own["users"][0]["user"]["token"] = token
        path = tmp_path / "user"
        path.write_bytes(msgspec.json.encode(own))
        kubectl = Kubectl(program, tmp_path, path)
        assert "created" in await kubectl("create", "configmap", "m", "--from-literal=a=b")
        assert (await kubectl("auth", "can-i", "create", "ksvc")).strip() == "yes"
        code, printed = await kubectl.tried("auth", "can-i", "get", "nodes")
        assert code == 1
        assert "no" in printed
        assert "pods/exec" in await kubectl("auth", "can-i", "--list")
        code, printed = await kubectl.tried("get", "nodes")
        assert 'Error from server (Forbidden): nodes is forbidden: User "deploy" cannot list' in printed


async def test_wrong_tokens_are_rate_limited_per_address_but_valid_tokens_are_not(users: Users) -> None:
    token = await users.token("view")
    results = [(await users.call(f"view.{number}", "GET", MAPS))[0] for number in range(COUNT_MAX + 5)]
    assert results == [401] * COUNT_MAX + [429] * 5
    headers = {"Authorization": "Bearer guess"}
    async with aiohttp.ClientSession(users.api.url) as session:
        async with session.get(MAPS, headers=headers) as response:
            reply = await response.json()
            assert (response.status, reply["reason"], reply["code"]) == (429, "TooManyRequests", 429)
            assert 0 < int(response.headers["Retry-After"]) <= 60
        # A request without a token does not count as a wrong token.
        async with session.get(MAPS) as response:
            assert response.status == 401
    # Valid tokens are accepted from the same address, as behind a proxy.
    assert (await users.call(token, "GET", MAPS))[0] == 200
    assert (await users.call(TOKEN, "GET", MAPS))[0] == 200
