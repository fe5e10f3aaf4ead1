"""An app with a known knee, and a learner of its pods while the load rises."""

import math
import random

import msgspec

from serving.core.model.quantity import Resources
from serving.core.scaling.learnt.learner import TargetLearner
from serving.core.scaling.learnt.target import LearntTarget
from serving.core.scaling.spec import ScalingSpec
from tests.unit.core.scaling.kpa_builders import DEFAULTS

MIB = 2**20
PERIOD_S = 15
TOTAL_MAX = 1000.0


class ServedApp(msgspec.Struct, frozen=True, kw_only=True):
    """An app whose requests wait ``wait_s`` and use ``cpu_s`` of one core: a closed network with one queue."""

    wait_s: float = 0.0
    cpu_s: float = 0.01
    base_bytes: int = 20 * MIB
    request_bytes: int = 0

    def respond(self, in_flight: float) -> tuple[float, float]:
        """Requests a second and response time, by exact mean value analysis (Reiser and Lavenberg 1980)."""
        waiting, response_s, throughput = 0.0, self.cpu_s, 0.0
        for count in range(1, max(1, round(in_flight)) + 1):
            response_s = self.cpu_s * (1 + waiting)
            throughput = count / (response_s + self.wait_s)
            waiting = throughput * response_s
        return min(throughput, in_flight / self.wait_s if self.wait_s else throughput), response_s + self.wait_s

    def uses(self, in_flight: float) -> Resources:
        """Cpu and memory at so many requests in flight."""
        throughput, _ = self.respond(in_flight)
        return Resources(
            cpu_m=round(1000 * min(1.0, throughput * self.cpu_s)),
            memory_bytes=round(self.base_bytes + self.request_bytes * in_flight),
        )


def learn(
    app: ServedApp,
    *,
    loads: list[float],
    limits: Resources = Resources(),  # noqa: B008 - a frozen record
    spec: ScalingSpec = DEFAULTS,
    learner: TargetLearner | None = None,
    seed: int = 1,
) -> list[LearntTarget | None]:
    """The learnt target after each period; its pods share the load by the previous target."""
    learner, dice = learner or TargetLearner(), random.Random(seed)
    targets: list[LearntTarget | None] = []
    now_s, total = 0.0, spec.total_value
    for load in loads:
        pods = max(1, math.ceil(load / (total * spec.target_value / spec.total_value)))
        learnt, in_flight, ended = None, 0.0, 0.0
        for second in range(PERIOD_S):
            for _ in range(min(pods, 4) if load else 0):
                in_flight = max(0.0, dice.gauss(load / pods, 0.3 * math.sqrt(load / pods)))
                ended, response_s = app.respond(in_flight)
                learner.record(in_flight, ended * dice.uniform(0.9, 1.1), response_s * dice.uniform(0.9, 1.1))
            if second % 2 and load:
                learner.measure(in_flight, ended, used=app.uses(in_flight), limits=limits)
            now_s += 1.0
            learnt = learner.update(spec, limits, period_s=PERIOD_S, total_max=TOTAL_MAX, now_s=now_s)
        total = spec.total_value if learnt is None else learnt.total
        targets.append(learnt)
    return targets
