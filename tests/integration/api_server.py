"""An API server with a store, for tests."""

import contextlib
import math
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from serving.home.apiserver.audit import AuditLog
from serving.home.apiserver.logoptions import PodLogs
from serving.home.apiserver.podstreams import PodStreams
from serving.home.apiserver.reviews import TokenReviews
from serving.home.apiserver.server import ApiOptions, application
from serving.home.controllers.revisionviews import RevisionViews
from serving.home.state import ApiCertificate, kubeconfig
from serving.home.store.memory import MemoryCluster
from serving.net.aio.handshakes import Handshakes
from serving.net.metrics.server import running

TOKEN = "integration"  # noqa: S105 - of a test's server


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a served API, and its kubeconfig."""

    url: str
    kubeconfig: Path


@contextlib.asynccontextmanager
async def served(
    cluster: MemoryCluster,
    folder: Path,
    *,
    logs: PodLogs | None = None,
    token_reviews: TokenReviews | None = None,
    bookmark_period_s: float = math.inf,
    has_tls: bool = False,
    audit: AuditLog | None = None,
    streams: PodStreams | None = None,
    views: RevisionViews | None = None,
) -> AsyncIterator[Served]:
    """Serve a store on a free port of 127.0.0.1. kubectl needs TLS, because it sends no token without."""
    reviews = token_reviews or TokenReviews()
    options = ApiOptions(
        token=TOKEN,
        token_reviews=reviews,
        bookmark_period_s=bookmark_period_s,
        audit=audit,
        views=views or RevisionViews(cluster),
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        certificate = ApiCertificate(folder / "certificates")
        authority = certificate.make() if has_tls else ""
        url = f"{'https' if has_tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        path = folder / "kubeconfig"
        path.write_text(kubeconfig(url, TOKEN, authority=authority), encoding="utf-8")
        tls = Handshakes(certificate.server_context()) if has_tls else None
        async with running(application(cluster, options, logs=logs, streams=streams), listener, tls=tls):
            yield Served(url=url, kubeconfig=path)
