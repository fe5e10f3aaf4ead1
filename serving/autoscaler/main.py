"""The autoscaler: ``python -m serving.autoscaler.main`` decides how many pods each revision has.

Environment:

- ``KUBECONFIG``: the server whose Revisions, Deployments and Pods are watched; without it, the pod's own cluster.
- ``SERVING_KEY_FILE``: the file of the cluster key, from which it derives the tokens of senders of stats. Required.
- ``SERVING_LISTEN_FDS``: bound sockets by name, ``{"stats": 3}``; without it the settings' address.
- ``SERVING_STATE``: the state folder of one machine, which has the decision log; without it no log is written.
- ``SERVING_ELECTION_<FIELD>``: with ``ENABLED``, several autoscalers divide the revisions by leases. ``SERVING_POD_IP``
  is this autoscaler's address for the others; by default its listening address.
- ``SERVING_AUTOSCALER_<FIELD>``: each setting of ``serving.core.settings.autoscaler`` in its plain unit.
"""

if __name__ == "__main__":
    # Before the slow imports below; see ``serving.net.aio.startup``.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()


import asyncio
import contextlib
import functools
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from serving.autoscaler.decision_events import DecisionBook, DecisionEvent, DecisionPublisher, Followers, PolicyBook
from serving.autoscaler.io.autoscaler import Autoscaler, MemorySaving
from serving.autoscaler.io.events import ScaleEventWriter
from serving.autoscaler.io.pod_credentials import CredentialIssuer
from serving.autoscaler.io.scale_writes import Prober
from serving.autoscaler.io.sharing import Sharing, sharing_out
from serving.autoscaler.io.stats_server import SharedStats, StatsServer
from serving.autoscaler.io.token_reviewer import TokenReviewer
from serving.core.model.identities import ACTIVATOR as ACTIVATOR_ID
from serving.core.model.identities import AUTOSCALER as AUTOSCALER_ID
from serving.core.model.knative import RevisionKey
from serving.core.model.loadmetric import CONCURRENCY
from serving.core.model.nodata import NoData
from serving.core.model.revisionnumbers import PodCounts, RevisionNumbers
from serving.core.scaling.classic.classic import ClassicDecision, ClassicMode
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.kpa.decide import ScaleDecision, ScalerMode
from serving.core.scaling.kpa.merge import ACTIVATOR_DECIDER
from serving.core.scaling.kpa.zero import GateAction
from serving.core.scaling.revision import ScaledRevision
from serving.core.scaling.scaler.decision_lines import DECISION_LOG, DECISION_LOG_FILES
from serving.core.scaling.scaler.registry import BUILT_IN, PolicyRegistry
from serving.core.scaling.scaler.scaler import Scaler
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.daemons import AUTOSCALER, DAEMONS, ELECTION
from serving.core.settings.election import ElectionSettings
from serving.core.settings.live import LiveSettings
from serving.net.aio.clock import now_s
from serving.net.aio.daemon import collect_in_small_steps, inherited_sockets, raise_descriptor_limit, run_daemon
from serving.net.aio.linefile import LineFile
from serving.net.aio.mutualtls import PeerTls
from serving.net.aio.policyclasses import POLICIES_FOLDER, BoundedCalls, StoredPolicies, installed_policies
from serving.net.aio.startup import report_serving
from serving.net.aio.supervise import supervise
from serving.net.cluster.configmaps import followed
from serving.net.cluster.identity import new_identity, system_namespace
from serving.net.cluster.kube import connect
from serving.net.cluster.leases.rules import lease_times
from serving.net.cluster.leases.shards import ShardOptions, Shards
from serving.net.cluster.port import Cluster
from serving.net.metrics.autoscaler import AutoscalerMetrics
from serving.net.metrics.export import exporting
from serving.net.metrics.page import wanted_type, watch_lag
from serving.net.metrics.queries import QueryGate, host_names_of
from serving.net.wire.frames import AnnouncedPod
from serving.net.wire.issuing import daemon_tls
from serving.net.wire.tokens import read_cluster_key

_log = logging.getLogger("autoscaler")

_STATE_VARIABLE = "SERVING_STATE"
_HOST_VARIABLE = "SERVING_POD_IP"


def measured(revision: ScaledRevision, outcome: ScalerOutcome) -> RevisionNumbers:
    """The metrics of a revision after a decision."""
    facts, merged, detail = outcome.view, outcome.merged, outcome.decided.detail
    metric, stable_load, panic_load, target_load, excess = CONCURRENCY.name, None, None, None, None
    if isinstance(detail, ScaleDecision):
        metric = outcome.inputs.spec.metric
        stable_load, panic_load = detail.observed_stable, detail.observed_panic
        target_load, excess = outcome.inputs.spec.target_value, detail.excess_burst_capacity
    elif isinstance(detail, ClassicDecision):
        stable_load, panic_load = detail.observed_stable_concurrency, detail.observed_panic_concurrency
        target_load = detail.target_concurrency
    return RevisionNumbers(
        namespace=revision.key[0],
        configuration=revision.configuration,
        revision=revision.key[1],
        desired_count=None if isinstance(merged, NoData) else merged.desired_count,
        requested_count=facts.present_scale,
        ready_count=facts.ready_count,
        is_panic=not isinstance(detail, NoData) and detail.mode in (ScalerMode.PANIC, ClassicMode.PANIC),
        rule=rule_of(outcome),
        metric=metric,
        stable_load=stable_load,
        panic_load=panic_load,
        target_load=target_load,
        excess_burst_capacity=excess,
        learnt_target=None if outcome.inputs.learnt is None else outcome.inputs.learnt.total,
    )


def rule_of(outcome: ScalerOutcome) -> str:
    """The rule that decided the count: the last one to change it."""
    merged, decided = outcome.merged, outcome.decided
    if isinstance(merged, NoData):
        return "no-data"
    if outcome.gate.action is not GateAction.APPLY and merged.desired_count == 0 and outcome.view.present_scale:
        return "gate-to-zero"
    if merged.bounds.limited_by is not None:
        return merged.bounds.limited_by.value
    if merged.decided_by is None:
        return "silence"
    if merged.decided_by == decided.proposal.decider and not isinstance(decided.detail, NoData):
        limit = decided.detail.limited_by
        return decided.detail.mode.value if limit is None else limit.value
    return "wake" if merged.decided_by == ACTIVATOR_DECIDER else "policy"


class AutoscalerDaemon:
    """All components of the daemon. ``address`` is set once ``is_serving`` is."""

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        settings: AutoscalerSettings,
        cluster: Cluster,
        *,
        key: bytes,
        log: Callable[[bytes], None] | None = None,
        election: ElectionSettings | None = None,
        me: str = "",
        registry: PolicyRegistry = BUILT_IN,
        saving: MemorySaving = MemorySaving.NONE,
    ) -> None:
        followers = Followers(lambda: self.autoscaler.end_rests())  # noqa: PLW0108 - it is made below
        self.secured = daemon_tls(key, AUTOSCALER_ID, settings.inner_tls.resolved(os.environ))
        self._sharing = Sharing()
        self._events = ScaleEventWriter(cluster, self._sharing)
        self._publisher = DecisionPublisher(followers, log=log, change=self._changed)
        # On a single machine EndpointSlices are as fast, and pods have ports that their containers do not name.
        self._announces = saving is not MemorySaving.REMOVE
        self.autoscaler = Autoscaler(
            cluster,
            settings=settings,
            prove=Prober(settings.activator_address, secured=self._to(ACTIVATOR_ID)),
            on_decision=self._decided,
            events=self._events,
            sharing=self._sharing,
            registry=registry,
            saving=saving,
            announce=self._announce,
        )
        self.relay = self.autoscaler.relay
        audience = settings.stats_audience
        reviewer = TokenReviewer(cluster, audience=audience, pod=self.autoscaler.pod) if audience else None
        policies = PolicyBook(keys=lambda: self.autoscaler.keys, scaler=self._scaler)
        self.metrics = AutoscalerMetrics(
            keys=lambda: self.autoscaler.keys,
            counts=lambda: self.server.numbers | self.autoscaler.numbers() | self.relay.numbers,
            pods=self._pods,
            costs=lambda key: policies.costs(key, now_s()),
        )
        self.server = StatsServer(
            key=key,
            record=self.autoscaler.record,
            decisions=DecisionBook(
                followers,
                keys=lambda: self.autoscaler.keys,
                decisions=self.autoscaler.decisions,
                policies=policies,
            ),
            page=lambda accept: (self.metrics.page.text(accept), wanted_type(accept)),
            is_well=lambda: self.autoscaler.is_synced,
            connections_max=settings.stats_connections_max,
            sharing=SharedStats(
                queries=QueryGate.of_environment(),
                relayed=functools.partial(self.autoscaler.record, is_relayed=True),
                elsewhere=self.relay.elsewhere,
                host_names=host_names_of(settings.host_names),
                reviewer=reviewer,
                pod=self.autoscaler.pod,
                announce=self.relay.announce,
                issuer=CredentialIssuer(key, pod=self.autoscaler.pod, secured=self.secured),
            ),
        )
        self.address: tuple[str, int] = ("", 0)
        self.is_serving = asyncio.Event()
        self._settings = settings
        self._cluster = cluster
        self._key = key
        self._election = election or ElectionSettings()
        self._me = me

    async def run(self, stop: asyncio.Event, *, listener: socket.socket | None = None) -> None:
        """Receive stats and decide until ``stop`` is set. ``listener`` is a bound socket that replaces the address."""
        host, _, port = self._settings.stats_address.rpartition(":")
        async with self.server.serve(listener or (host, int(port))) as self.address, supervise() as tasks:
            self.is_serving.set()
            report_serving()
            tasks.keep_running(self._events.run, name="autoscaler events")
            tasks.keep_running(lambda: watch_lag(self.metrics.page), name="autoscaler loop lag")
            if self.secured is not None:
                tasks.keep_running(self.secured.renew, name="autoscaler certificate")
            async with self._sharing_out():
                await self.autoscaler.run(stop)

    def _sharing_out(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Own the revisions of this process's leases; without leases, all revisions."""
        if not self._election.enabled:
            return contextlib.nullcontext()
        host = os.environ.get(_HOST_VARIABLE) or self.address[0]
        options = ShardOptions(
            daemon="autoscaler",
            namespace=system_namespace(),
            count=self._election.shard_count,
            me=self._me,
            address=f"[{host}]:{self.address[1]}" if ":" in host else f"{host}:{self.address[1]}",
            times=lease_times(self._election),
        )
        shards = Shards(
            self._cluster,
            options,
            on_won=self.autoscaler.won,
            on_lost=self._lost,
            others=lambda: self.server.autoscalers,
        )
        secured = self._to(AUTOSCALER_ID)
        return sharing_out(self._sharing, self.relay, shards=shards, key=self._key, secured=secured)

    def _to(self, peer: str) -> PeerTls | None:
        return None if self.secured is None else self.secured.to(peer)

    async def _lost(self, shard: int) -> None:
        await self.autoscaler.lost(shard)
        self.server.end_followers()

    def _pods(self, key: RevisionKey) -> PodCounts:
        entry = self.autoscaler.entry(key)
        return PodCounts() if entry is None else entry.pod_counts()

    def _scaler(self, key: RevisionKey) -> Scaler | None:
        entry = self.autoscaler.entry(key)
        return None if entry is None else entry.scaler

    def _decided(self, event: DecisionEvent) -> None:
        self._publisher.publish(event)
        self.metrics.decided(measured(event.revision, event.outcome))

    def _announce(self, pod: AnnouncedPod) -> None:
        if self._announces:
            self.server.announce(pod)

    def _changed(self, revision: ScaledRevision, sentence: str) -> None:
        namespace, name = revision.key
        _log.info("scale.decided", extra={"namespace": namespace, "revision": name, "sentence": sentence})
        self._events.add(revision, sentence)


def main() -> int:
    """Run until a stop signal; return the exit code."""
    raise_descriptor_limit()
    collect_in_small_steps()
    registry = _policies(os.environ.get(_STATE_VARIABLE))

    async def body(stop: asyncio.Event) -> None:
        config = LiveSettings(AUTOSCALER, registry=DAEMONS, environment=os.environ)
        sharing = LiveSettings(ELECTION, registry=DAEMONS, environment=os.environ)
        key, me = read_cluster_key(os.environ), new_identity()
        async with (
            connect("autoscaler", identity=me) as cluster,
            followed(cluster, system_namespace(), [config, sharing]) as watch,
        ):
            settings, election = config.settings, sharing.settings
            with contextlib.ExitStack() as stack:
                state = os.environ.get(_STATE_VARIABLE)
                log = _decision_log(settings, state)
                add = None if log is None else stack.enter_context(log).add
                # On a single machine requests are not enforced, and the kubelet writes the condition.
                saving = MemorySaving.REMOVE if state else MemorySaving.RESIZE
                daemon = AutoscalerDaemon(
                    settings, cluster, key=key, log=add, election=election, me=me, registry=registry, saving=saving
                )
                stack.enter_context(watch.applied_by(lambda: daemon.autoscaler.reconfigure(config.settings)))
                async with exporting(settings.otlp, daemon.metrics.page, service="autoscaler"):
                    await daemon.run(stop, listener=inherited_sockets().get("stats"))

    return run_daemon("autoscaler", body)


def _policies(state: str | None) -> PolicyRegistry:
    """The built-in policies, those of installed packages and, on a single machine, of the state folder."""
    find = StoredPolicies(Path(state) / POLICIES_FOLDER).find if state else None
    return PolicyRegistry(installed_policies(), find=find, run=BoundedCalls())


def _decision_log(settings: AutoscalerSettings, state: str | None) -> LineFile | None:
    if not state or not settings.decision_log_bytes_max:
        return None
    bytes_max = settings.decision_log_bytes_max // DECISION_LOG_FILES
    return LineFile(Path(state) / DECISION_LOG, bytes_max=bytes_max, files_max=DECISION_LOG_FILES)


if __name__ == "__main__":
    sys.exit(main())
