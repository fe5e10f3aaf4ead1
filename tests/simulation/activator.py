"""An activator without sockets: the product's router, routes and cluster view; requests are objects.

A request on a connection is a sleep here. A request whose pod is gone is returned to the router, as
the ingress does.
"""

import asyncio
import random
from collections.abc import Callable, Sequence

from serving.activator.io.cluster_view import ClusterView
from serving.activator.io.forwarding import Ticker
from serving.activator.queueing.outcome import Dispatch, Rejection, RevisionWake, RoutingOutcome
from serving.activator.queueing.router import RequestRouter
from serving.activator.queueing.wake import RevisionLoad
from serving.activator.routing.routes import Routes
from serving.activator.routing.sites import Listener, choose
from serving.core.model.knative import RevisionKey
from serving.core.settings.activator import ActivatorSettings
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.net.aio.clock import now_s
from serving.net.cluster.port import Cluster
from tests.simulation.node import SimulatedNode, SimulatedPod

Report = Callable[[RevisionKey, RevisionLoad], None]
_TRIES_MAX = 20


class SimulatedRequest:
    """A request of a client; ``outcome`` is "" until it has ended."""

    def __init__(self, host: str, *, took_s: float, at_s: float) -> None:
        self.host = host
        self.took_s = took_s
        self.at_s = at_s
        self.tries = 0
        self.outcome = ""
        self.ended_s = 0.0
        self.key: RevisionKey | None = None

    def __repr__(self) -> str:
        return f"SimulatedRequest({self.host} at {self.at_s:.1f}, {self.outcome or 'open'})"


class SimulatedActivator:
    """One process. ``end`` kills it and its held requests."""

    def __init__(self, cluster: Cluster, node: SimulatedNode, dice: random.Random, report: Report) -> None:
        self.settings = ActivatorSettings()
        self.routes = Routes()
        self.router = RequestRouter[SimulatedRequest](self.settings, random=dice.random)
        self.inside: set[SimulatedRequest] = set()
        self._node = node
        self._dice = dice
        self._report = report
        self.ticker = Ticker(self.router, apply=self.apply, clock=now_s)
        # The part of an ingress that the view uses: routes, router and apply.
        rules = ControllerSettings().host_rules
        self.view = ClusterView(cluster, self, AutoscalerSettings(), rules=rules, clock=now_s)  # type: ignore[arg-type]
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(self.view.run())
                while True:
                    await asyncio.sleep(self.settings.report_period_s)
                    for key, load in self.router.report(now_s()):
                        self._report(key, load)
                    self.ticker.schedule()
        finally:
            self.ticker.close()
            for request in self.inside:
                self._ended(request, "killed")
            self.inside.clear()

    def handle(self, request: SimulatedRequest) -> None:
        """Handle a new request."""
        site = self.routes.find(Listener.PUBLIC, request.host)
        if site is None:
            self._ended(request, "404")
            return
        if not site.revisions:
            self._ended(request, "503")
            return
        request.key = choose(site, tag=None, draw=self._dice.random)
        self.inside.add(request)
        response = self.router.arrive(request.key, request, now_s())
        if isinstance(response, Dispatch):
            self._dispatch(response)
        elif isinstance(response, Rejection):
            self._reject(response)
        self.ticker.schedule()

    def apply(self, outcome: RoutingOutcome[SimulatedRequest]) -> None:
        """Carry out the router's decisions."""
        for dispatch in outcome.dispatches:
            self._dispatch(dispatch)
        for rejection in outcome.rejections:
            self._reject(rejection)
        self._wake(outcome.wakes)
        for probe in outcome.probes:
            simulated_pod = self._node.pods.get(probe.pod.address)
            is_ready = simulated_pod is not None and simulated_pod.is_alive
            self.apply(self.router.probed(probe, now_s(), is_ready=is_ready))
        self.ticker.schedule()

    def _wake(self, wakes: Sequence[RevisionWake]) -> None:
        for wake in wakes:
            if wake.poke is not None:
                self._report(wake.key, wake.poke.load)
            if wake.flip:
                self.view.flip(wake)

    def _dispatch(self, dispatch: Dispatch[SimulatedRequest]) -> None:
        assert self._group is not None
        self._group.create_task(self._serve(dispatch.request, dispatch.pod.address))

    async def _serve(self, request: SimulatedRequest, address: str) -> None:
        assert request.key is not None
        request.tries += 1
        pod = self._node.pods.get(address)
        await asyncio.sleep(0.001)
        if pod is None or not pod.is_alive:
            if request.tries < _TRIES_MAX:
                for dispatch in self.router.requeue(request.key, request, now_s()):
                    self._dispatch(dispatch)
                self.ticker.schedule()
            else:
                self._finish(request, "502")
            return
        await self._work(request, pod)

    async def _work(self, request: SimulatedRequest, pod: SimulatedPod) -> None:
        pod.inside.add(request)
        pod.arrived_count += 1
        try:
            await asyncio.sleep(request.took_s)
        finally:
            pod.inside.discard(request)
        self._finish(request, "200" if pod.is_alive else "cut")

    def _finish(self, request: SimulatedRequest, outcome: str) -> None:
        assert request.key is not None
        self._ended(request, outcome)
        self.inside.discard(request)
        for dispatch in self.router.finish(request.key, request, now_s(), has_response=outcome == "200"):
            self._dispatch(dispatch)
        self.ticker.schedule()

    def _reject(self, rejection: Rejection[SimulatedRequest]) -> None:
        self._ended(rejection.request, f"503 {rejection.reason}")
        self.inside.discard(rejection.request)

    def _ended(self, request: SimulatedRequest, outcome: str) -> None:
        request.outcome, request.ended_s = outcome, now_s()
