"""``python -m tests.cluster_e2e.own_server FOLDER``: our own API server, for when there is no other.

The memory store with its API, the garbage collector, and the manager of ``serving/local`` in the place of a
controller-manager: pods for Deployments, slices for Services. It says ``ready`` on its standard output, with its
kubeconfig in the folder, and runs until its standard input ends. Each write is a line in the folder's file ``writes`` with
the name of who made it, if it was done. Tokens of pods are those of the folder's file ``tokens``, one a line.
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

from serving.cluster.admission import admit
from serving.cluster.api.kubeconfig import kubeconfig
from serving.cluster.api.reviews import KnownToken, TokenReviews
from serving.cluster.api.running import running
from serving.cluster.api.server import ApiOptions, application
from serving.cluster.garbage import collect_garbage
from serving.cluster.memory import MemoryCluster
from serving.local.manager import Manager
from serving.settings.autoscaler import AutoscalerSettings

__all__ = ["TOKENS", "WRITES", "main"]

TOKENS = "tokens"
WRITES = "writes"
_TOKEN = "cluster-e2e"  # noqa: S105 - a server that lives for some tests


def _recording(path: Path) -> Middleware:
    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if request.method != "GET" and response.status < web.HTTPBadRequest.status_code:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{request.headers.get('User-Agent', '-')} {request.method} {request.path}\n")
        return response

    return record


def _tokens(path: Path) -> dict[str, KnownToken]:
    """Whose each token is: a line is the token, a space, and that as JSON."""
    lines = [line.split(" ", 1) for line in path.read_text().splitlines()] if path.exists() else []
    return {token: msgspec.json.decode(known, type=KnownToken) for token, known in lines}


async def main(folder: Path) -> None:
    """Serve until the standard input ends."""
    cluster = MemoryCluster(admit=functools.partial(admit, scaling=AutoscalerSettings()))
    reviews = TokenReviews(lambda: _tokens(folder / TOKENS))
    served = application(cluster, ApiOptions(token=_TOKEN, token_reviews=reviews))
    (folder / WRITES).touch()
    served.middlewares.append(_recording(folder / WRITES))
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
