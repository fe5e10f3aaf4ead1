"""Users see only the data of their namespaces and act only by their role, whatever the state and the grant."""

import asyncio
import base64
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.model.errors import SettingsError
from serving.core.model.grants import Grant, Role
from serving.core.model.objects import Object
from serving.core.settings.dashboard import DashboardSettings
from serving.home.admission.admission import admit
from serving.home.apiserver.accesstokens import new_token, secret_name
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import SECRET as SECRET_KIND
from serving.net.cluster.kube import KubeCluster
from serving.tools.dashboard import server, viewers
from serving.tools.dashboard.board import Board, RequestRates
from serving.tools.dashboard.coldstarts import ColdRequest
from serving.tools.dashboard.cost import RevisionOwner
from serving.tools.dashboard.main import read_proxy_secret
from serving.tools.dashboard.server import Pages, PageSources
from serving.tools.dashboard.topology import ServedHost
from serving.tools.dashboard.viewers import PROXY_SECRET_HEADER, Viewers
from tests.eventually import until
from tests.integration.api_server import served
from tests.integration.dashboard_stage import TOKEN, DashboardStage, staged
from tests.integration.query_token import GATE

NAMESPACES = ("zq-amber", "zq-birch", "zq-cedar", "zq-amber-2")
SECRET = "p" * 43
HEADER = "X-Remote-User"
PROOF = {PROXY_SECRET_HEADER: SECRET}
PROXY = "http://localhost:8443"
UNREAD = {"/events", "/{name}"}
NGINX = """
user root; daemon off; error_log stderr; pid {folder}/pid;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen unix:{folder}/socket;
    location / {{
      auth_basic "services"; auth_basic_user_file {folder}/users;
      proxy_pass {url}; proxy_http_version 1.1; proxy_buffering off;
      proxy_set_header X-Remote-User $remote_user;
      proxy_set_header X-Serving-Proxy-Secret {secret};
      proxy_set_header Authorization "";
      proxy_set_header Host $http_host;
    }}
  }}
}}
"""

States = st.dictionaries(st.sampled_from(NAMESPACES), st.integers(0, 2), min_size=2)
Grants = st.builds(
    Grant, user=st.just("ann"), role=st.sampled_from(Role), namespaces=st.frozensets(st.sampled_from(NAMESPACES))
)


def keys_of(state: Mapping[str, int]) -> list[str]:
    return [f"{namespace}/of-{namespace}.{number}" for namespace, count in state.items() for number in range(count)]


def filled(state: Mapping[str, int]) -> tuple[Board, list[dict[str, Any]]]:
    """A board in which each string contains its namespace, and its decisions."""
    board, decisions, now_s = Board(100), [], time.time()
    for key in keys_of(state):
        namespace, _, name = key.partition("/")
        own = {"namespace": namespace, "name": name, "service": name, "conditions": [], "ready": "True", "created": ""}
        board.put("service", key, {**own, "traffic": [{"revision": name, "percent": 100}], "url": f"http://{name}"})
        board.put("revision", key, {**own, "scaling": {}})
        board.owners[key] = RevisionOwner(key, 2**30)
        pod = {**own, "revision": name, "restarts": 0, "ending": False, "dormant": False, "ready": True, "reason": ""}
        pod |= {"node": "", "phase": "Running"}
        board.put("pod", f"{key}-pod", {**pod, "name": f"{name}-pod"})
        board.put("pod", f"{key}-pod", {**pod, "name": f"{name}-pod", "restarts": 1})
        outcome = {"apply_count": 1, "gate": {"wanted": 1}}
        decisions.append(
            {
                "namespace": namespace,
                "revision": name,
                "sentence": f"scale {name}",
                "told": {"since_wall_s": now_s, "outcome": outcome},
            }
        )
        board.decision(decisions[-1])
    board.put("service", "zq-cedar/gone", None)
    board.nodes.put_node("node-of-zq-amber", {"metadata": {"name": "node-of-zq-amber"}})
    problem = {"type": "Full", "status": "False", "message": "no room for zq-birch/pod and zq-cedar/pod"}
    board.nodes.set_groups([{"metadata": {"name": "group"}, "status": {"conditions": [problem]}}])
    board.requests(dict.fromkeys(keys_of(state), RequestRates(rates=(1.0, 0.0, 0.0, 0.0))))
    board.tick(now_s)
    return board, decisions


def pages_of(board: Board, state: Mapping[str, int], grant: Grant) -> Pages:
    keys = [key.partition("/") for key in keys_of(state)]

    async def policies(_: Mapping[str, str]) -> list[Mapping[str, Any]]:
        return [{"namespace": namespace, "revision": name} for namespace, _, name in keys]

    async def cold_requests(_: str) -> list[ColdRequest]:
        return [ColdRequest(revision=name, asked_s=time.time(), waited_s=1.0) for _, _, name in keys]

    users = Viewers(GATE, header=HEADER, secret=SECRET, users={"ann": grant})

    def compared(namespace: str, name: str) -> tuple[Object | None, list[Object]]:
        if f"{namespace}/{name}" not in keys_of(state):
            return None, []
        own = [{"metadata": {"namespace": namespace, "name": f"{name}-{number}"}} for number in (1, 2)]
        return {"metadata": {"namespace": namespace, "name": name}}, own

    async def hosts() -> list[ServedHost]:
        urls: dict[str, Any] = {
            "url": "http://x",
            "kind": "Route",
            "service": "",
            "tag": "",
            "targets": (),
            "ready": "True",
            "reason": "",
        }
        return [ServedHost(namespace=namespace, host=name, **urls) for namespace, _, name in keys]

    sources = PageSources(cold_requests=cold_requests, hosts=hosts, service=compared)
    return Pages(board, DashboardSettings(), is_well=lambda: True, policies=policies, viewers=users, sources=sources)


async def texts_of(pages: Pages, board: Board, state: Mapping[str, int]) -> list[tuple[str, str]]:
    """All responses to the user by path, including event streams with a tick and decisions."""
    headers, results = {HEADER: "ann", **PROOF}, []
    app = pages.application()
    paths = {
        abstract_route.resource.canonical for abstract_route in app.router.routes() if abstract_route.resource
    } - UNREAD
    assert {"/compare", "/history", "/policy", "/coldstarts", "/cost", "/map", "/requests", "/state"} <= paths
    names = ["", *keys_of(state), *state, "zq-none/x"]
    async with TestClient(TestServer(app)) as client:
        for path in sorted(paths):
            for name in names:
                for query in ({"revision": name}, {"name": name}, {"revision": "", "name": name}):
                    async with client.get(path, params=query, headers=headers) as response:
                        results.append((f"{path} {query}", await response.text()))
        for name in names:
            async with client.get("/events", params={"revision": name}, headers=headers) as response:
                if response.status != 200:
                    results.append((f"/events {name}", await response.text()))
                    continue
                board.put("service", "zq-amber/new-of-zq-amber", {"namespace": "zq-amber", "name": "new-of-zq-amber"})
                pages.tick(time.time(), board.rows, board.marks.drain(time.time()))
                for key in keys_of(state):
                    pages.decide({"key": key, "sentence": key})
                pages.tick(time.time(), {}, [])
                text = ""
                while text.count("event: tick") < 2 or not text.endswith("\n\n"):
                    text += (await response.content.readany()).decode()
                results.append((f"/events {name}", text))
    return results


@settings(max_examples=settings().max_examples // 5, deadline=None)
@given(state=States, grant=Grants)
def test_user_receives_no_data_of_forbidden_namespaces(state: dict[str, int], grant: Grant) -> None:
    board, _ = filled(state)
    texts = asyncio.run(texts_of(pages_of(board, state, grant), board, state))
    for path, text in texts:
        for namespace in NAMESPACES:
            if not grant.may_read(namespace):
                # The prefix zq-amber in zq-amber-2 is not a leak of zq-amber.
                assert namespace not in text.replace(
                    "zq-amber-2", "" if grant.may_read("zq-amber-2") else "zq-amber"
                ), path
    for key in filter(grant.may_read, keys_of(state)):
        text = next(text for path, text in texts if path == f"/compare {{'name': '{key}'}}")
        names = [revision["revision"] for revision in msgspec.json.decode(text)["revisions"]]
        assert names == [f"{key.partition('/')[2]}-{number}" for number in (1, 2)]
    costs = msgspec.json.decode(next(text for path, text in texts if path.startswith("/cost {'revision': ''}")))
    assert len(costs["services"]) == sum(grant.may_read(key) for key in keys_of(state))
    service_map = msgspec.json.decode(next(text for path, text in texts if path.startswith("/map {'revision': ''}")))
    readable = sum(grant.may_read(key) for key in keys_of(state))
    assert (len(service_map["hosts"]), len(service_map["pods"])) == (readable, readable)
    state_text = next(text for path, text in texts if path.startswith("/state {'revision': ''}"))
    assert {resource["key"] for resource in msgspec.json.decode(state_text)["objects"] if resource["view"]} >= {
        key for key in keys_of(state) if grant.may_read(key)
    }


@contextlib.asynccontextmanager
async def proxied(users: str) -> AsyncIterator[DashboardStage]:
    async with staged(proxy_users=users, proxy_secret=SECRET) as stage:
        yield stage


async def fetch(url: str, headers: Mapping[str, str], **options: Any) -> tuple[int, str]:  # noqa: ANN401 - aiohttp's
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, **options) as response:
        return response.status, await response.text()


async def status_of_action(url: str, action: str, headers: Mapping[str, str], namespace: str = "default") -> int:
    body = {"namespace": namespace, "service": "hello", **({"min": 1} if action.endswith("scale") else {})}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/{action}", json=body, headers=headers) as response,
    ):
        return response.status


async def test_user_header_without_proxy_secret_is_rejected() -> None:
    async with proxied("ann=view:default, eve=admin:*") as stage:
        for proof in ({}, {PROXY_SECRET_HEADER: ""}, {PROXY_SECRET_HEADER: "g" * 43}):
            assert (await fetch(f"{stage.url}/state", {HEADER: "eve", **proof}))[0] == 401
            assert await status_of_action(stage.url, "actions/scale", {HEADER: "eve", **proof}) == 401
        assert (await fetch(f"{stage.url}/state", {HEADER: "ann", **PROOF}))[0] == 200
        assert (await fetch(f"{stage.url}/state", {HEADER: "bob", **PROOF}))[0] == 403
        assert (await fetch(f"{stage.url}/state", PROOF))[0] == 401
        # A request with the proxy's secret must name a user, even with the query token.
        assert (await fetch(f"{stage.url}/state", {**GATE.headers(), **PROOF}))[0] == 401


async def test_proxy_user_acts_and_reads_logs_by_role_and_namespace() -> None:
    users = "ann=view:default, bob=deploy:default, eve=admin:*, joe=deploy:other"
    async with proxied(users) as stage:

        async def tried(user: str, action: str, **more: str) -> int:
            return await status_of_action(stage.url, action, {HEADER: user, **PROOF, **more})

        assert [await tried(user, "actions/scale") for user in ("ann", "bob", "eve", "joe")] == [403, 200, 200, 403]
        await stage.ready("hello-00001", "hello-00002")
        assert [await tried(user, "actions/rollback") for user in ("ann", "joe", "bob")] == [403, 403, 200]
        assert "requested in the dashboard by bob: hello: rolled back to hello-00001" in str(await stage.events())
        assert await tried("bob", "actions/rollback", Origin="http://elsewhere") == 403
        assert await tried("bob", "actions/scale", Origin="http://elsewhere") == 403
        # The dashboard's token does not extend the permissions of a user.
        assert await tried("ann", "actions/scale", Authorization=f"Bearer {TOKEN}") == 403
        seen = msgspec.json.decode((await fetch(f"{stage.url}/state", {HEADER: "ann", **PROOF}))[1])
        assert (seen["user"], seen["may_act"], seen["may_read_logs"]) == ("ann", False, True)
        seen = msgspec.json.decode((await fetch(f"{stage.url}/state", {HEADER: "joe", **PROOF}))[1])
        assert (seen["may_act"], seen["objects"], seen["rows"]) == (True, [], {})


@contextlib.asynccontextmanager
async def shown_to_tokens(folder: Path) -> AsyncIterator[tuple[MemoryCluster, DashboardStage]]:
    """A dashboard of an API server with users, and the server's store."""
    store = MemoryCluster(admit=admit)
    async with (
        served(store, folder) as api,
        KubeCluster(api.kubeconfig) as cluster,
        staged(cluster=cluster, proxy_users="x=view:x", proxy_secret=SECRET) as stage,
    ):
        yield store, stage


async def token_of(store: MemoryCluster, user: str, role: Role, *namespaces: str) -> str:
    grant = Grant(user=user, role=role, namespaces=frozenset(namespaces) or None)
    text, secret = new_token(grant, until_s=time.time() + 3600)
    await store.create(SECRET_KIND, secret)
    return text


async def test_user_token_limits_view_and_actions_to_its_role_and_namespaces(tmp_path: Path) -> None:
    async with shown_to_tokens(tmp_path) as (store, stage):
        grants: dict[str, tuple[Role, *tuple[str, ...]]] = {
            "ann": (Role.VIEW, "default"),
            "bob": (Role.DEPLOY, "default"),
            "joe": (Role.ADMIN, "other"),
            "eve": (Role.ADMIN,),
        }
        bearers = {}
        for user, (role, *namespaces) in grants.items():
            bearers[user] = {"Authorization": f"Bearer {await token_of(store, user, role, *namespaces)}"}
        seen = {user: await fetch(f"{stage.url}/state", bearer) for user, bearer in bearers.items()}
        assert {user: (status, "hello" in text) for user, (status, text) in seen.items()} == {
            "ann": (200, True),
            "bob": (200, True),
            "joe": (200, False),
            "eve": (200, True),
        }
        statuses = {
            user: await status_of_action(stage.url, "actions/scale", bearer) for user, bearer in bearers.items()
        }
        assert statuses == {"ann": 403, "bob": 200, "joe": 403, "eve": 200}
        # In the system's namespace only an admin of all namespaces may act.
        everywhere = {"Authorization": f"Bearer {await token_of(store, 'dora', Role.DEPLOY)}"}
        wake_namespaces = ("default", system_namespace())
        wake_statuses = [
            await status_of_action(stage.url, "actions/wake", everywhere, place) for place in wake_namespaces
        ]
        assert wake_statuses == [200, 403]
        assert await status_of_action(stage.url, "actions/wake", bearers["eve"], system_namespace()) == 404
        wrong = {"Authorization": f"Bearer ann.{'x' * 43}"}
        assert (await fetch(f"{stage.url}/state", wrong))[0] == 401
        assert await status_of_action(stage.url, "actions/scale", wrong) == 401


async def test_link_of_user_sets_a_view_only_cookie(tmp_path: Path) -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    async with shown_to_tokens(tmp_path) as (store, stage), aiohttp.ClientSession(stage.url, cookie_jar=jar) as session:
        token = await token_of(store, "bob", Role.DEPLOY, "other")
        async with session.get("/", params={"token": token}, allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, "/")
            assert token not in str(response.headers)
        async with session.get("/state") as response:
            state = await response.json()
            assert (state["objects"], state["user"], state["may_act"]) == ([], "", True)
        async with session.get("/history", params={"revision": "default/hello-00001"}) as response:
            assert response.status == 403
        for path in ("/actions/wake", "/logs"):
            async with session.post(path, json={"namespace": "other", "service": "x"}) as response:
                assert response.status in {401, 404, 405}
        # The link of an operator shows all namespaces.
        async with session.get("/", params={"token": GATE.token()}) as response:
            assert response.status == 200
        async with session.get("/state") as response:
            assert (await response.json())["objects"]


async def test_event_stream_ends_when_its_token_is_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (viewers, server):
        monkeypatch.setattr(module, "REVIEW_VALID_S", 0.1)
    async with shown_to_tokens(tmp_path) as (store, stage), aiohttp.ClientSession(stage.url) as session:
        token = await token_of(store, "ann", Role.VIEW, "default")
        async with session.get("/events", headers={"Authorization": f"Bearer {token}"}) as response:
            assert b"hello" in await response.content.readuntil(b"\n\n")
            await store.delete(SECRET_KIND, system_namespace(), secret_name("ann"))
            async with asyncio.timeout(60):
                with contextlib.suppress(aiohttp.ClientError):
                    while await response.content.readany():
                        pass
        assert (await fetch(f"{stage.url}/state", {"Authorization": f"Bearer {token}"}))[0] == 401


def test_proxy_user_header_requires_a_proxy_secret(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="proxy-secret-file: empty beside proxy-user-header"):
        read_proxy_secret(DashboardSettings(proxy_user_header=HEADER))
    file = tmp_path / "secret"
    file.write_text(SECRET)
    dashboard_settings = DashboardSettings(proxy_user_header=HEADER, proxy_secret_file=str(file))
    assert read_proxy_secret(dashboard_settings) == SECRET


async def is_listening(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
async def test_users_of_nginx_proxy_see_only_their_namespaces(tmp_path: Path) -> None:
    async with proxied("ann=view:other, bob=deploy:default") as stage:
        (tmp_path / "users").write_text("ann:{PLAIN}a\nbob:{PLAIN}b\n")
        (tmp_path / "conf").write_text(NGINX.format(folder=tmp_path, url=stage.url, secret=SECRET))
        nginx = await asyncio.create_subprocess_exec("nginx", "-p", str(tmp_path), "-c", str(tmp_path / "conf"))
        try:
            connector = aiohttp.UnixConnector(str(tmp_path / "socket"))
            async with aiohttp.ClientSession(PROXY, connector=connector) as session:

                async def state_of(user: str, **headers: str) -> tuple[int, str]:
                    auth = f"Basic {base64.b64encode(f'{user}:{user[:1]}'.encode()).decode()}"
                    async with session.get("/state", headers={"Authorization": auth, **headers}) as response:
                        return response.status, await response.text()

                async def status_of_action(user: str, origin: str) -> int:
                    auth = f"Basic {base64.b64encode(f'{user}:{user[:1]}'.encode()).decode()}"
                    headers = {"Authorization": auth, "Origin": origin, "Sec-Fetch-Site": "same-origin"}
                    body = {"namespace": "default", "service": "hello", "min": 1}
                    async with session.post("/actions/scale", json=body, headers=headers) as response:
                        return response.status

                await until(lambda: is_listening(tmp_path / "socket"))
                assert (await state_of("joe"))[0] == 401
                for claimed in ({}, {HEADER: "bob", **PROOF}, {HEADER.upper(): "bob"}):
                    status, text = await state_of("ann", **claimed)
                    assert (status, "hello" in text) == (200, False)
                assert "hello-00002" in (await state_of("bob"))[1]
                # A browser sends the origin with the port of the proxy.
                assert [await status_of_action(user, PROXY) for user in ("bob", "ann")] == [200, 403]
                assert await status_of_action("bob", "http://localhost") == 403
        finally:
            nginx.terminate()
            await nginx.wait()
