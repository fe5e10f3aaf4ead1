"""``python -m tests.cluster_e2e.own_server FOLDER``: our own API server, for when there is no other.

The memory store with its API, the garbage collector, and the manager of ``serving/home`` in place of a
controller-manager: pods for Deployments, slices for Services. It says ``ready`` on its standard output, with its
kubeconfig in the folder, and runs until its standard input ends. Each write is a line in the folder's file ``writes``
with the name of who made it, if it was done; what a real server would have refused of it is in ``refused``. Tokens of
pods are those of the folder's file ``tokens``, one a line.
"""

import asyncio
import functools
import socket
import sys
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from serving.core.model.objects import Object
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.home.admission.admission import admit
from serving.home.admission.kuberules.rules import kube_problems
from serving.home.apiserver.reviews import KnownToken, TokenReviews
from serving.home.apiserver.server import ApiOptions, application
from serving.home.controllers.garbage import collect_garbage
from serving.home.controllers.manager import Manager
from serving.home.state import kubeconfig
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import kind_of
from serving.net.cluster.kubeclient import TOGETHER_PATH, WriteCall
from serving.net.metrics.server import running
from tests.unit.config.strict import faults, model_of

TOKENS = "tokens"
WRITES = "writes"
REFUSED = "refused"
# Once a minute on a real server; often, so that every watch of the suite meets some.
_BOOKMARK_PERIOD_S = 0.5
# What is only answered, and never stored.
_NOT_JUDGED = {"Scale", "Status", "TokenReview"}
# Of these a definition says all; a Service of ours has the name of a built-in kind.
_DEFINED = ("serving.knative.dev/", "serving.dev/", "gateway.networking.k8s.io/", "metrics.k8s.io/")
_TOKEN = "cluster-e2e"  # noqa: S105 - a server that lives for some tests


class _DoneWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A write that succeeded, and the object of its response."""

    method: str
    path: str
    document: Object | None


async def _done_writes(request: web.Request, response: web.StreamResponse) -> list[_DoneWrite]:
    """The writes of a request: each of several that were sent together."""
    if request.method == "GET" or response.status >= web.HTTPBadRequest.status_code:
        return []
    body = response.body if isinstance(response, web.Response) else None
    reply = msgspec.json.decode(body) if isinstance(body, bytes) else {}
    if request.path != TOGETHER_PATH:
        return [_DoneWrite(method=request.method, path=request.path, document=reply or None)]
    calls = msgspec.json.decode(await request.read(), type=list[WriteCall])
    return [
        _DoneWrite(method=call.method, path=call.path, document=result["body"])
        for call, result in zip(calls, reply["results"], strict=False)
        if result["status"] < web.HTTPBadRequest.status_code
    ]


def _recording(path: Path) -> Middleware:
    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        writes = await _done_writes(request, response)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(
                f"{request.headers.get('User-Agent', '-')} {write.method} {write.path}\n" for write in writes
            )
        return response

    return record


def _judging(path: Path) -> Middleware:
    """Ours checks its own kinds alone; of the built-in ones it is written down what a real server would have said."""

    @web.middleware
    async def judge(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        for write in await _done_writes(request, response):
            if write.method not in {"POST", "PUT", "PATCH"} or write.document is None:
                continue
            document = write.document
            is_built_in = not document["apiVersion"].startswith(_DEFINED) and document["kind"] not in _NOT_JUDGED
            kind = kind_of(document["apiVersion"], document["kind"])
            if is_built_in and kind is not None and model_of(document) is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.writelines(
                        f"{request.headers.get('User-Agent', '-')} {write.method} {write.path} {fault}\n"
                        for fault in (*faults(document), *kube_problems(kind, document))
                    )
        return response

    return judge


def _tokens(path: Path) -> dict[str, KnownToken]:
    """Whose each token is: a line is the token, a space, and that as JSON."""
    lines = [line.split(" ", 1) for line in path.read_text().splitlines()] if path.exists() else []
    return {token: msgspec.json.decode(known, type=KnownToken) for token, known in lines}


async def main(folder: Path) -> None:
    """Serve until the standard input ends."""
    cluster = MemoryCluster(admit=functools.partial(admit, scaling=AutoscalerSettings()))
    reviews = TokenReviews(lambda token: _tokens(folder / TOKENS).get(token))
    options = ApiOptions(token=_TOKEN, token_reviews=reviews, bookmark_period_s=_BOOKMARK_PERIOD_S)
    served = application(cluster, options)
    (folder / WRITES).touch()
    (folder / REFUSED).touch()
    served.middlewares.append(_recording(folder / WRITES))
    served.middlewares.append(_judging(folder / REFUSED))
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (folder / "kubeconfig").write_text(kubeconfig(url, _TOKEN))
        async with (
            running(served, listener, shutdown_s=0.2),
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(Manager(cluster).run()), group.create_task(collect_garbage(cluster))]
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)
            for task in tasks:
                task.cancel()
    await cluster.close()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
