"""The activator: ``python -m serving.activator.main``, the ingress and buffer in front of all services.

Environment:

- ``KUBECONFIG``: the server whose Routes, Revisions and EndpointSlices are served; without it, the pod's own cluster.
- ``SERVING_KEY_FILE``: the file of the cluster key, from which its token and the pods' secrets are derived. Required.
- ``SERVING_LISTEN_FDS``: bound sockets by name, ``{"public": 3, "inner": 4}``; without it the settings' addresses.
  "inner-pods-80" is a further socket of the listener "inner", for the pods of one machine.
- ``SERVING_ACTIVATOR_<FIELD>``: each setting of ``serving.core.settings.activator`` in its plain unit.
- ``SERVING_AUTOSCALER_<FIELD>``: the settings from which the targets of revisions are resolved.
- ``SERVING_CONTROLLER_<FIELD>``: the domains and templates from which hosts are built, with the controller's values.

SIGTERM and SIGINT drain the activator. SIGHUP hands over to another process with the same sockets: the activator
finishes its requests and accepts no more.
"""

if __name__ == "__main__":
    # Before the slow imports below; see ``serving.net.aio.startup``.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()


import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path

import msgspec

from serving.activator.io.certificates import CertificateWatch
from serving.activator.io.cluster_view import ClusterView
from serving.activator.io.forwarding import PodCredentials
from serving.activator.io.ingress import Ingress
from serving.activator.io.innerways import InnerWays
from serving.activator.io.namedports import NamedPorts
from serving.activator.io.peers import PeerProcesses
from serving.activator.io.prober import PodProber
from serving.activator.io.reports import StatsClient, ejection_reports, report_loads
from serving.activator.io.tcplisteners import TcpListeners
from serving.activator.io.visit import VIEW
from serving.activator.queueing.outcome import RevisionWake, RoutingOutcome
from serving.activator.queueing.readiness import PodProbe
from serving.activator.queueing.router import RequestRouter, RevisionTable
from serving.activator.queueing.slices import PodEndpoints, ServedPod
from serving.activator.routing.probes import is_probe_agent
from serving.activator.routing.routes import Routes
from serving.activator.routing.sites import Listener
from serving.core.model.errors import Problem, SettingsError
from serving.core.model.knative import RevisionKey
from serving.core.model.launch import ACME_CHALLENGES_VARIABLE
from serving.core.model.routehosts import HostRules
from serving.core.settings.activator import REDIRECTED, ActivatorSettings
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.daemons import ACTIVATOR, AUTOSCALER, CONTROLLER, DAEMONS
from serving.core.settings.live import LiveSettings
from serving.net.aio.clock import wall_s
from serving.net.aio.daemon import collect_rarely, inherited_sockets, raise_descriptor_limit, run_daemon
from serving.net.aio.startup import report_serving
from serving.net.aio.supervise import supervise
from serving.net.cluster.configmaps import followed
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kube import connect
from serving.net.cluster.port import Cluster
from serving.net.metrics.activator import ActivatorMetrics, add_refusals, add_tls
from serving.net.metrics.export import exporting, span_outbox
from serving.net.metrics.queries import QueryGate
from serving.net.metrics.server import serve_page
from serving.net.metrics.tracing import Tracer
from serving.net.proxy.forwarding.accesslog import stdout_log
from serving.net.proxy.forwarding.challenges import CHALLENGE_PATH, ChallengeResponses
from serving.net.proxy.forwarding.exchange import Exchange, Handler
from serving.net.proxy.http1.pool import Pool
from serving.net.proxy.http1.requesthead import RequestHead
from serving.net.proxy.server.listener import HttpServer
from serving.net.proxy.tls.keeper import silence_unreadable_names
from serving.net.proxy.tls.layer import TlsLayer
from serving.net.wire.link import Link
from serving.net.wire.tokens import read_cluster_key

_log = logging.getLogger("activator")

_HTTPS_PORT = 443
# Time for a rejection to reach its client, in seconds.
_REFUSAL_S = 1.0


class Activator:
    """All components of the daemon. ``addresses`` and ``tls_address`` are set once ``is_serving`` is."""

    def __init__(  # noqa: PLR0913 - what it is wired with
        self,
        settings: ActivatorSettings,
        cluster: Cluster,
        *,
        key: bytes,
        scaling: AutoscalerSettings | None = None,
        rules: HostRules | None = None,
        namespace: str = "knative-serving",
        tracer: Tracer | None = None,
        challenge_folder: Path | None = None,
    ) -> None:
        self._challenge_folder = challenge_folder
        draw = random.Random().random  # noqa: S311 - spreads requests and pauses
        clock = time.monotonic
        self.settings = settings
        self.access_log = stdout_log(settings.http)
        table = RevisionTable[Exchange]()
        self.peers = PeerProcesses(settings, table, clock=clock, apply=self._apply) if settings.count > 1 else None
        slots = None if self.peers is None else self.peers.broker
        router = RequestRouter[Exchange](settings, random=draw, view=VIEW, table=table, slots=slots)
        credentials = PodCredentials(key, secrets_of=settings.secrets_of, revision=router.directory.revision)
        endpoints = PodEndpoints(settings.pod_address_override, lines_to=credentials.lines)
        rules = rules or ControllerSettings().host_rules
        self.certificates = CertificateWatch(settings.tls, cluster, namespace=namespace)
        local = self.certificates.certificates if rules.has_local_certificates else None
        handshake_max_s = settings.http.head_wait_max_s
        self.inner = inner = InnerWays(
            key, settings.inner_tls, endpoints, handshake_max_s=handshake_max_s, environment=os.environ, local=local
        )
        pool = Pool(settings.http.with_hop_room(), clock=clock, connector=inner.connector())
        self.server = HttpServer(settings.http, pool=pool, clock=clock, access_log=self.access_log)
        self.client = StatsClient(
            settings,
            key=key,
            draw=draw,
            on_connected=self._connected,
            on_announced=self._announced,
            secured=inner.to_autoscaler,
        )
        self.prober = PodProber(endpoints, credentials.secret, self._probed, secured_to=inner.to_pod)
        self.ingress = Ingress(
            settings,
            router,
            Routes(),
            key=key,
            endpoints=endpoints,
            prober=self.prober,
            metrics=_metrics(router, self.client.link),
            tracer=tracer,
            draw=draw,
            clock=clock,
            on_wake=self._wake,
        )
        self.tcp = TcpListeners(self.server, self.ingress, cluster, name=settings.name)
        self.named = NamedPorts(self.server, self.ingress, make=inner.front_of(Listener.INNER))
        self.view = ClusterView(
            cluster,
            self.ingress,
            scaling or AutoscalerSettings(),
            rules=rules,
            clock=clock,
            on_route=self.named.with_named(self.tcp.set),
            on_secrets=self.certificates.set_mapped,
        )
        self._add_metrics()
        self.addresses: dict[Listener, tuple[str, int]] = {}
        self.tls_address: tuple[str, int] | None = None
        self.is_serving = asyncio.Event()
        self._handover = asyncio.Event()

    def _add_metrics(self) -> None:
        certificates, page = self.certificates.certificates, self.ingress.metrics.page
        add_refusals(page, self.server.refusals.counts)
        add_tls(page, failed=certificates.failures.total, expiries=certificates.expiries)

    def hand_over(self) -> None:
        """Stop accepting and exit after the last request; another process accepts from the same sockets.

        Queued requests stay queued and are forwarded as before. Remaining requests are cut off after
        ``handover_grace_s``, or when ``run``'s ``stop`` is set.
        """
        self._handover.set()

    def reconfigure(self, settings: ActivatorSettings, scaling: AutoscalerSettings, rules: HostRules) -> None:
        """Apply changed live settings."""
        self.settings = settings
        self.ingress.reconfigure(settings)
        self.view.reconfigure(scaling, rules)

    def route_digest(self, parts: Mapping[str, str]) -> str | None:
        """The digest of a Route as currently served, None for an unknown Route; ``parts`` are its namespace and name."""
        return self.ingress.routes.digest_of(f"{parts['namespace']}/{parts['name']}")

    def ejections(self, parts: Mapping[str, str]) -> str:
        """The ejected pods of the namespace in ``parts``, as JSON."""
        reports = ejection_reports(self.ingress.router, parts["namespace"], now_s=self.server.clock(), wall_s=wall_s())
        return msgspec.json.encode(reports).decode()

    async def run(
        self,
        stop: asyncio.Event,
        *,
        sockets: Mapping[str, socket.socket] | None = None,
        on_handover: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Serve until ``stop`` is set, then drain. ``sockets`` are bound sockets by listener name.

        ``on_handover`` is awaited during a handover; it releases the resources that the other process has taken over.
        """
        settings, ended = self.settings, asyncio.Event()
        async with contextlib.AsyncExitStack() as at_end, supervise() as group:
            # A failed or cancelled run closes all listeners and connections, which would keep the event loop open.
            at_end.push_async_callback(self.server.finish, grace_s=0)
            view = group.start(self.view.run(), name="cluster view")
            probing = group.start(self.prober.run(), name="pod probes")
            renewing = group.start(self.inner.renew(), name="inner certificate")
            if not await _first(self.view.synced(), stop):
                for task in (view, probing, renewing):
                    task.cancel()
                return
            await self.certificates.reload()
            tasks = []
            if self.peers is not None:
                await self.peers.start()
                at_end.callback(self.peers.close)
                tasks.append(group.start(self.peers.run(ended), name="peers"))
            await self._listen(sockets or {})
            tasks.append(group.start(self.tcp.run(self.addresses[Listener.PUBLIC][0], ended), name="tcp"))
            tasks.append(group.start(self.named.run(sockets or {}, ended), name="named ports"))
            watching = self.certificates.run(ended, looked=lambda: self._listen_for_tls(sockets or {}))
            tasks.append(group.start(watching, name="certificates"))
            stats = group.start(self.client.link.run(), name="stats connection")
            period_s, clock = settings.report_period_s, self.server.clock
            reporting = report_loads(self.ingress, self.client, period_s=period_s, clock=clock, stop=ended)
            reports = group.start(reporting, name="stats reports")
            await _first(self._handover.wait(), stop)
            if stop.is_set():
                await self._drain()
            else:
                await self._finish_handover(stop, on_handover)
            ended.set()
            await asyncio.wait([reports, *tasks])
            for task in (stats, view, probing, renewing):
                task.cancel()

    async def _listen(self, sockets: Mapping[str, socket.socket]) -> None:
        await self._listen_for_tls(sockets)
        addresses_by_listener = {
            Listener.PUBLIC: self.settings.public_address,
            Listener.INNER: self.settings.inner_address,
        }
        handlers = {Listener.PUBLIC: self._plain_handler(), Listener.INNER: self.ingress}
        for listener, address in addresses_by_listener.items():
            where = sockets.get(listener.value) or _host_and_port(address)
            self.addresses[listener] = await self._listen_on(where, handlers, listener)
        for name, sock in sockets.items():
            listener_name, _, port = name.partition("-pods-")
            if port:
                await self._listen_on(sock, handlers, Listener(listener_name))
        self.is_serving.set()
        report_serving()
        addresses = {str(listener): f"{host}:{port}" for listener, (host, port) in self.addresses.items()}
        if self.tls_address is not None:
            addresses["tls"] = f"{self.tls_address[0]}:{self.tls_address[1]}"
        _log.info("activator.serving", extra=addresses)

    async def _listen_on(
        self, where: socket.socket | tuple[str, int], handlers: Mapping[Listener, Handler], listener: Listener
    ) -> tuple[str, int]:
        make, takes_turns = self.inner.front_of(listener), self.settings.count > 1
        return await self.server.listen(
            where, handlers[listener], listener=listener.value, takes_turns=takes_turns, make=make
        )

    async def _listen_for_tls(self, sockets: Mapping[str, socket.socket]) -> None:
        """Serve public hosts over TLS once a certificate exists, with the routes of the plain listener."""
        is_wanted = self.settings.tls.is_on or self.certificates.certificates.count
        if self.tls_address is not None or self.ingress.is_draining or not is_wanted:
            return
        silence_unreadable_names()
        terms = self.certificates.certificates.terms
        self.tls_address = await self.server.listen(
            sockets.get("tls") or _host_and_port(self.settings.tls.address),
            self.ingress,
            listener=Listener.PUBLIC.value,
            takes_turns=self.settings.count > 1,
            make=lambda server, wiring: TlsLayer(server, wiring, terms),
        )
        _log.info("activator.serving-tls", extra={"address": f"{self.tls_address[0]}:{self.tls_address[1]}"})

    def _plain_handler(self) -> Handler:
        """The handler of public plain HTTP requests."""
        handler: Handler = self.ingress
        if self.settings.http_protocol == REDIRECTED:
            from serving.net.proxy.forwarding.redirect import HttpsRedirect  # noqa: PLC0415 - most systems do not redirect

            port = self.settings.tls.public_port or (self.tls_address or ("", _HTTPS_PORT))[1]
            handler = HttpsRedirect(handler, stays=self._stays_plain, port=port)
        return handler if self._challenge_folder is None else ChallengeResponses(handler, self._challenge_folder)

    def _stays_plain(self, head: RequestHead) -> bool:
        """Whether a request is served without TLS: probes, ACME challenges, and unknown hosts (always 404)."""
        agent = head.get(b"user-agent") or b""
        host = head.host.decode("latin-1")
        is_ours = head.reserved or is_probe_agent(agent) or head.target.startswith(CHALLENGE_PATH)
        return is_ours or self.ingress.routes.find(Listener.PUBLIC, host) is None

    async def _finish_handover(self, stop: asyncio.Event, on_handover: Callable[[], Awaitable[None]] | None) -> None:
        self.ingress.is_draining = True
        self.server.hand_over()
        if self.peers is not None:
            self.peers.stop_sharing()
        if on_handover is not None:
            await on_handover()
        _log.info("activator.handed-over", extra={"connections": self.server.connection_count})
        tunnels = self.server.wait_for_tunnels(grace_s=self.settings.handover_grace_s)
        await _first(tunnels, stop)
        if stop.is_set():
            await self._drain()
        else:
            await self._end(grace_s=0)

    async def _drain(self) -> None:
        """Stop serving: reject queued requests and cut off running ones after the grace period.

        Before, for the time of the setting ``drain_lag_s``, requests are still accepted while probes fail, so that
        senders notice the end.
        """
        self.ingress.is_draining = True
        self.server.drain()
        await asyncio.sleep(self.settings.drain_lag_s)
        await self._end(grace_s=self.settings.drain_grace_s)

    async def _end(self, *, grace_s: float) -> None:
        closing = asyncio.get_running_loop().call_later(grace_s, self.ingress.close)
        # The last rejections must still reach their clients.
        cut_count = await self.server.finish(grace_s=grace_s + _REFUSAL_S)
        closing.cancel()
        self.ingress.close()
        if self.access_log is not None:
            await self.access_log.close()
        _log.info("activator.stopped", extra={"cut": cut_count, "dropped_frames": self.client.link.dropped_count})

    def _wake(self, wakes: Sequence[RevisionWake]) -> None:
        self.client.report([(wake.key, wake.poke.load) for wake in wakes if wake.poke is not None])
        for wake in wakes:
            rows = self.ingress.metrics.of(wake.key)
            if wake.flip:
                rows.woken("flip")
                self.view.flip(wake)
            poke = wake.poke
            if poke is not None:
                rows.woken(poke.reason)
            poke_fields = {"poke": poke.reason.value, "concurrency": poke.load.concurrency} if poke else {}
            _log.info(
                "revision.wanted",
                extra={"namespace": wake.key[0], "revision": wake.key[1], "flip": wake.flip, **poke_fields},
            )

    # Callbacks into the ingress for objects that are created before it.

    def _connected(self) -> None:
        self.ingress.report_all()

    def _announced(self, key: RevisionKey, pod: ServedPod) -> None:
        self.ingress.announced(key, pod)

    def _probed(self, probe: PodProbe, is_ready: bool) -> None:  # noqa: FBT001 - a callback
        self.ingress.probed(probe, is_ready)

    def _apply(self, outcome: RoutingOutcome[Exchange]) -> None:
        self.ingress.apply(outcome)


def _metrics(router: RequestRouter[Exchange], link: Link) -> ActivatorMetrics:
    """Metrics of a router's requests, and of its connection to the autoscaler."""
    return ActivatorMetrics(
        configuration_of=router.directory.configuration_of,
        keys=lambda: router.directory.keys | router.throttlers.keys(),
        inside=router.inside,
        lost_frames=lambda: link.dropped_count,
        is_connected=lambda: link.is_connected,
    )


async def _first(wanted: Coroutine[object, object, object], stop: asyncio.Event) -> bool:
    """Wait for ``wanted`` or ``stop``; return whether ``wanted`` came first."""
    async with supervise() as group:
        tasks = [group.start(wanted, name="wanted"), group.start(stop.wait(), name="stop")]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        return tasks[0] in done


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        problem = Problem(where=address, what="not an address", expected='host and port, as in "127.0.0.1:8080"')
        raise SettingsError([problem])
    return host.strip("[]"), int(port)


def main() -> int:
    """Run until a signal stops it; return the exit code."""
    raise_descriptor_limit()
    collect_rarely()

    async def body(stop: asyncio.Event) -> None:
        config = LiveSettings(ACTIVATOR, registry=DAEMONS, environment=os.environ)
        scaling = LiveSettings(AUTOSCALER, registry=DAEMONS, environment=os.environ)
        hosts = LiveSettings(CONTROLLER, registry=DAEMONS, environment=os.environ)
        key, namespace = read_cluster_key(os.environ), system_namespace(os.environ)
        async with (
            connect("activator") as cluster,
            followed(cluster, namespace, [config, scaling, hosts]) as watch,
            span_outbox(config.settings.otlp, service="activator", instance=config.settings.name) as send,
        ):
            settings, challenges = config.settings, os.environ.get(ACME_CHALLENGES_VARIABLE)
            activator = Activator(
                settings,
                cluster,
                key=key,
                scaling=scaling.settings,
                rules=hosts.settings.host_rules,
                namespace=namespace,
                tracer=None if send is None else Tracer(settings.trace_ratio, send=send),
                challenge_folder=Path(challenges) if challenges else None,
            )
            sockets = inherited_sockets()
            where = (
                sockets.get(f"activator-{settings.index}-metrics" if settings.index else "activator-metrics")
                or settings.metrics_address
            )
            ingress, page = activator.ingress, activator.ingress.metrics.page
            sending = exporting(settings.otlp, page, service="activator", instance=settings.name)
            # The controller asks for a Route's digest, which reveals nothing to others.
            digests = {"/routes/{namespace}/{name}": activator.route_digest}
            texts = {
                "/ejections/{namespace}": activator.ejections,
                "/requests/{namespace}/{name}": ingress.recorder.reports,
                "/coldstarts/{namespace}": ingress.metrics.cold_starts,
            }
            gate, front = QueryGate.of_environment(), activator.inner.front_of_pages
            pages = serve_page(page, where, gate=gate, texts=texts, open_texts=digests, front=front)
            applied = watch.applied_by(
                lambda: activator.reconfigure(config.settings, scaling.settings, hosts.settings.host_rules)
            )
            with applied:
                async with contextlib.AsyncExitStack() as serving_page, sending:
                    await serving_page.enter_async_context(pages)
                    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, activator.hand_over)
                    await activator.run(stop, sockets=sockets, on_handover=serving_page.aclose)

    return run_daemon("activator", body)


if __name__ == "__main__":
    sys.exit(main())
