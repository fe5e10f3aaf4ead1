"""Simulates revisions that learn from each other, concurrently in steps, in one or several processes.

In a running system all revisions of an autoscaler share one ``GapPrior``. Here the gaps of a step reach the other
revisions in the next step. They are recorded in the order of the functions, so that the result does not depend on the
number of processes.
"""

import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from serving.core.scaling.adaptive.gaps import SHIPPED_PRIOR, GapPrior
from serving.tools.simulator.results import RevisionResult
from serving.tools.simulator.revision_run import RevisionRun
from serving.tools.simulator.workers import end_with_parent

STEP_S = 60.0
"""Maximum time in seconds until a gap reaches the other revisions."""

RunOf = Callable[[int, GapPrior], RevisionRun]
"""Creates the run of a function, by its index in the workload."""

# A gap of a step, and its weight in the prior.
_Gap = tuple[float, float]
_StepOutcome = tuple[list[tuple[int, list[_Gap]]], float]


class _StepPrior(GapPrior):
    """What revisions know about the request rates of all functions, unchanged during one step of the simulation.

    Gaps between requests are collected, from which the rates of the next step are computed.
    """

    __slots__ = ("gaps",)

    def __init__(self) -> None:
        super().__init__(SHIPPED_PRIOR)
        self.gaps: list[_Gap] = []

    def publish(self, rates: tuple[float, ...]) -> None:
        """Replace the request rates of all functions, at the start of a step."""
        self._rates = rates

    def record(self, gap_s: float, *, weight: float) -> None:
        """Store a gap for the next step."""
        self.gaps.append((gap_s, weight))


class _Group:
    """The revisions of one process."""

    def __init__(self, run_of: RunOf, indices: Sequence[int]) -> None:
        self._prior = _StepPrior()
        self._indices = indices
        self._runs = [run_of(index, self._prior) for index in indices]
        self._next_s = [run.next_s for run in self._runs]

    def step(self, rates: tuple[float, ...], limit_s: float) -> _StepOutcome:
        """Simulate up to a time; return the gaps between requests by function index, and the next event's time."""
        prior, gaps = self._prior, []
        prior.publish(rates)
        for place, at_s in enumerate(self._next_s):
            if at_s > limit_s:
                continue
            run = self._runs[place]
            run.run_until(limit_s)
            self._next_s[place] = run.next_s
            if prior.gaps:
                gaps.append((self._indices[place], prior.gaps))
                prior.gaps = []
        return gaps, min(self._next_s, default=math.inf)

    def finish(self) -> list[tuple[int, RevisionResult]]:
        """The result of each function, by index."""
        return [(index, run.run()) for index, run in zip(self._indices, self._runs, strict=True)]


def run_population(
    run_of: RunOf, request_counts: Sequence[int], *, length_s: float, jobs: int, on_time: Callable[[float], None]
) -> list[RevisionResult]:
    """Run all functions with a shared prior. After each step, ``on_time`` gets the simulated part of the total time.

    Raises ``RuntimeError`` when a process of the pool ends early.
    """
    # Busy functions are distributed first, so that each process has a similar amount of work.
    order = sorted(range(len(request_counts)), key=lambda index: -request_counts[index])
    shares = [sorted(order[first::jobs]) for first in range(min(jobs, len(order)))]
    own, prior, next_s = _Group(run_of, shares[0]), GapPrior(SHIPPED_PRIOR), 0.0
    with _children(run_of, shares[1:]) as children:
        while math.isfinite(next_s):
            limit_s = STEP_S * (math.floor(next_s / STEP_S) + 1)
            for child in children:
                child.send((prior.rates, limit_s))
            outcomes: list[_StepOutcome] = [own.step(prior.rates, limit_s)]
            outcomes += [child.recv() for child in children]
            for _, gaps in sorted(entry for outcome in outcomes for entry in outcome[0]):
                for gap_s, weight in gaps:
                    prior.record(gap_s, weight=weight)
            next_s = min(outcome[1] for outcome in outcomes)
            on_time(min(1.0, limit_s / length_s))
        for child in children:
            child.send(None)
        results = own.finish()
        for child in children:
            results += child.recv()
    return [result for _, result in sorted(results, key=lambda entry: entry[0])]


@contextmanager
def _children(run_of: RunOf, shares: Sequence[Sequence[int]]) -> Iterator[list[Connection]]:
    """Start processes that each simulate a share of the functions; yield the connections to them."""
    context = multiprocessing.get_context("fork")
    children, processes = [], []
    try:
        for share in shares:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, run_of, share), daemon=True)
            process.start()
            theirs.close()
            children.append(ours)
            processes.append(process)
        yield children
    except (EOFError, ConnectionError) as error:
        raise RuntimeError("a process of the simulation ended early; its own error is printed above") from error
    finally:
        for child in children:
            child.close()
        for process in processes:
            process.terminate()
            process.join()


def _serve(connection: Connection, run_of: RunOf, share: Sequence[int]) -> None:
    """Simulate step by step, as commanded by the parent process."""
    end_with_parent()
    group = _Group(run_of, share)
    while (request := connection.recv()) is not None:
        connection.send(group.step(*request))
    connection.send(group.finish())
