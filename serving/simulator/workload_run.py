"""Runs a workload under one policy: all functions, distributed over processes.

Functions that do not share nodes do not influence each other, so each is simulated alone; the same seed gives the same result,
to the last bit, for any number of processes.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec

from serving.scaling.resolve import resolve
from serving.settings.activator import ActivatorSettings
from serving.settings.annotations import ScalingAnnotations
from serving.settings.autoscaler import AutoscalerSettings
from serving.settings.queueproxy import QueueProxySettings
from serving.simulator.curve import DialPosition, SimulatedPolicy
from serving.simulator.nodes import NodePlan, NodeRoom, SharedNodes, run_together
from serving.simulator.results import DurationModel, NodesResult, Quantiles, RevisionResult
from serving.simulator.revision_run import RevisionRun, RunConfig
from serving.simulator.trace import FunctionTrace

# Functions that a process takes at once: more make less traffic between processes, fewer share better.
_CHUNK = 4


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A workload and its environment, without the policy. Times in seconds."""

    functions: Sequence[FunctionTrace]
    length_s: float
    settings: AutoscalerSettings = AutoscalerSettings()
    scaling: ScalingAnnotations = ScalingAnnotations()
    activator: ActivatorSettings = ActivatorSettings()
    queue_proxy: QueueProxySettings = QueueProxySettings()
    service: DurationModel = DurationModel(default=Quantiles(p50_s=0.25, p99_s=0.25))
    start: DurationModel = DurationModel(default=Quantiles(p50_s=2.0, p99_s=2.0))
    concurrency: int = 10
    probe_delay_s: float = 0.02
    failing_starts: float = 0.0
    has_burst_switch: bool = True

    pods_max: int = 0
    """Pods that the nodes have room for, of all functions together; more wait. 0: no limit."""

    nodes: NodePlan | None = None
    """Nodes that a node group grows and shrinks below all functions; None: every pod has a place."""


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    workload: Workload
    config: RunConfig


# The work of the processes of a pool: set before they are forked, so that no trace is sent through a pipe.
_JOBS: list[_Job] = []


def run_workload(  # noqa: PLR0913 - what a run is
    workload: Workload,
    policy: SimulatedPolicy,
    *,
    position: DialPosition | None = None,
    seed: int = 1,
    jobs: int = 1,
    on_progress: Callable[[], None] | None = None,
    on_nodes: Callable[[NodesResult], None] | None = None,
) -> list[RevisionResult]:
    """Run every function under a policy; ``position`` turns its dial, ``on_progress`` is called after each function.

    ``on_nodes`` gets what the nodes did, where the workload has nodes.
    """
    settings = policy.change(workload.settings)
    if position is not None:
        settings = position.change(settings)
    config = RunConfig(
        settings=settings,
        spec=resolve(settings, workload.scaling, container_concurrency=workload.concurrency, reachable=True),
        activator=workload.activator,
        queue_proxy=workload.queue_proxy,
        concurrency=workload.concurrency,
        seed=seed,
        probe_delay_s=workload.probe_delay_s,
        failing_starts=workload.failing_starts,
        has_burst_switch=workload.has_burst_switch,
    )
    results: dict[int, RevisionResult] = {}
    job = _Job(workload=workload, config=config)
    runs = _results(job, jobs) if workload.nodes is None else enumerate(_run_on_nodes(job, workload.nodes, on_nodes))
    for index, result in runs:
        results[index] = result
        if on_progress is not None:
            on_progress()
    # In the order of the functions: sums of floating-point numbers depend on it.
    return [results[index] for index in range(len(results))]


def _results(job: _Job, jobs: int) -> Iterator[tuple[int, RevisionResult]]:
    """The place of each function in the workload with its result, in the order in which they end."""
    functions = job.workload.functions
    if job.workload.pods_max:
        yield from enumerate(_run_on_shared_nodes(job))
        return
    if jobs <= 1 or len(functions) <= 1:
        yield from ((index, _run(job, index)) for index in range(len(functions)))
        return
    _JOBS[:] = [job]
    # The busiest functions first, so that no process is left with them at the end.
    order = sorted(range(len(functions)), key=lambda index: -functions[index].request_count)
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        results = pool.map(_run_forked, order, chunksize=_CHUNK if len(order) > _CHUNK * jobs else 1)
        yield from zip(order, results, strict=True)


def _run_forked(index: int) -> RevisionResult:
    return _run(_JOBS[0], index)


def _run_on_shared_nodes(job: _Job) -> Iterator[RevisionResult]:
    """Functions that share nodes influence each other, and are simulated in one process."""
    nodes = SharedNodes(job.workload.pods_max)
    runs = [_revision(job, index, nodes) for index in range(len(job.workload.functions))]
    run_together(runs, nodes)
    yield from (run.finish() for run in runs)


def _run_on_nodes(
    job: _Job, plan: NodePlan, on_nodes: Callable[[NodesResult], None] | None
) -> Iterator[RevisionResult]:
    """The same with nodes that a node group grows and shrinks."""
    from serving.simulator.nodeworld import SimulatedNodes  # noqa: PLC0415 - node groups and scores, where there are nodes only

    nodes = SimulatedNodes(plan, job.workload.length_s)
    runs = [_revision(job, index, nodes) for index in range(len(job.workload.functions))]
    run_together(runs, nodes)
    if on_nodes is not None:
        on_nodes(nodes.finish())
    yield from (run.finish() for run in runs)


def _run(job: _Job, index: int) -> RevisionResult:
    return _revision(job, index).run()


def _revision(job: _Job, index: int, nodes: NodeRoom | None = None) -> RevisionRun:
    workload, function = job.workload, job.workload.functions[index]
    config = msgspec.structs.replace(
        job.config, service=workload.service.of(function.name), start=workload.start.of(function.name)
    )
    return RevisionRun(function.name, function.arrivals(config.seed), config, until_s=workload.length_s, nodes=nodes)
