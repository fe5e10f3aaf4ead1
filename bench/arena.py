"""``serving arena`` with the rivals of the literature among its policies.

    python bench/arena.py --traces DIR [--plan FILE] [--out DIR] [--jobs N] [--quick]

Plans are in ``bench/plans``: ``grid.yaml`` holds the adaptive policy as shipped against Knative's at four starts and
two limits of a pod, ``rivals.yaml`` compares all policies and the adaptive one at the pod-seconds of each.
"""

import sys
from pathlib import Path

from bench.parts.program import options_of
from bench.rivals.base import GapRival
from bench.rivals.control import PredictiveControl
from bench.rivals.fourier import FourierForecast
from bench.rivals.histogram import HybridHistogram
from bench.rivals.rules import PatternRules
from bench.rivals.switching import ForecastSwitch
from serving.core.model.errors import SettingsError
from serving.core.scaling.adaptive.advice import PreWarmBudget
from serving.core.scaling.adaptive.gaps import SHIPPED_PRIOR, GapPrior
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.tools.cli.decisions.arena import run_arena
from serving.tools.simulator.arenaplan import ArenaPlan, ArenaWorkload, read_plan
from serving.tools.simulator.curve import POLICIES, SimulatedPolicy

PLANS = Path(__file__).parent / "plans"
QUICK = ArenaPlan(
    policies=("knative", "adaptive", "rules-1-1m"),
    workloads=(ArenaWorkload(name="quick", trace="azure2019-1350.per-minute.csv.xz", until_s=1800.0, sample=3),),
    seeds=1,
)


def _rival(kind: type[GapRival], **parameters: float) -> SimulatedPolicy:
    def policy_of(spec: ScalingSpec, settings: AutoscalerSettings, **_: object) -> GapRival:
        budget = PreWarmBudget(settings.adaptive.pre_warming_per_minute)
        return kind(spec, settings, prior=GapPrior(SHIPPED_PRIOR), budget=budget, explains=False, **parameters)

    # Knative's pods for the load: only the windows after the last request are the rival's.
    return SimulatedPolicy(change=POLICIES["adaptive"].change, dial=(), policy_of=policy_of)


RIVALS = {
    f"histogram-{tail:.0%}-{standard_s:g}s": _rival(HybridHistogram, tail=tail, standard_s=standard_s)
    for tail, standard_s in ((0.5, 60), (0.9, 120), (0.99, 600), (0.99, 14_400))
}
RIVALS |= {f"fourier-{calls:g}": _rival(FourierForecast, threshold=calls) for calls in (1, 0.25, 0.03)}
RIVALS |= {
    f"rules-{around:g}-{after:g}m": _rival(PatternRules, around_minutes=around, give_up_minutes=after)
    for around, after in ((0.5, 0.25), (1, 1), (3, 5))
}
RIVALS |= {f"control-{worth:g}s": _rival(PredictiveControl, worth_s=worth) for worth in (120, 480)}
RIVALS |= {
    f"switching-{calls:g}": _rival(ForecastSwitch, threshold=calls, worth_s=worth)
    for calls, worth in ((0.25, 120), (0.03, 480))
}


def main() -> None:
    """Run a plan."""
    options = options_of(__doc__, traces=Path, plan=PLANS / "rivals.yaml", out=Path("arena"), jobs=2, quick={})
    if options.traces is None:
        sys.exit("arena: --traces DIR is missing")
    try:
        plan = QUICK if options.quick else read_plan(options.plan)
        known = {**POLICIES, **RIVALS}
        if unknown := [name for name in plan.policies if name not in known]:
            sys.exit(f"arena: {unknown[0]} is none of {', '.join(known)}")
        policies = {name: known[name] for name in plan.policies}
        run_arena(plan, policies, traces=options.traces, out=options.out, jobs=options.jobs)
    except SettingsError as error:
        sys.exit(str(error))
    print((options.out / "page.md").read_text())


if __name__ == "__main__":
    main()
