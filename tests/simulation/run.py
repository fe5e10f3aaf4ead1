"""``PYTHONHASHSEED=0 python -m tests.simulation.run``: run seeds, and print violations.

A run depends on its seed alone where PYTHONHASHSEED is 0, as `make simulate-faults` sets it.
"""

import argparse
import logging
import os
import sys
import time

from serving.core.settings.autoscaler import KNATIVE_POLICY, POLICIES
from tests.simulation.scenario import STORM_S, play

_FAULTS_SHOWN_MAX = 20
_SEEDS = 50


def main() -> int:
    """Play the seeds; 1 if any failed."""
    parser = argparse.ArgumentParser(description="Play the control plane on virtual time with random faults.")
    parser.add_argument("--seeds", type=int, help="how many; 50, or none beside --seed")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--seed", type=int, action="append", default=[], help="this one too; may be repeated")
    parser.add_argument("--storm", type=float, default=STORM_S, metavar="SECONDS", help="how long faults come and go")
    parser.add_argument("--policy", choices=POLICIES, default=KNATIVE_POLICY, help="of the autoscaler")
    parser.add_argument("--story", action="store_true", help="what happened, also in runs that held")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        parser.error("PYTHONHASHSEED is not 0: a seed would make another run each time")
    count = arguments.seeds if arguments.seeds is not None else 0 if arguments.seed else _SEEDS
    seeds = [*arguments.seed, *range(arguments.first, arguments.first + count)]
    failed: list[int] = []
    logging.disable(logging.CRITICAL)
    begun_s = time.monotonic()
    for seed in seeds:
        outcome = play(seed, storm_s=arguments.storm, policy=arguments.policy)
        if outcome.faults:
            failed.append(seed)
            shown = [*outcome.faults[:_FAULTS_SHOWN_MAX], "what happened:", *outcome.story]
            sys.stdout.write(f"seed {seed} failed:\n" + "".join(f"  {line}\n" for line in shown))
        elif arguments.story:
            counts = f"store at version {outcome.version}, {outcome.response_count} requests answered"
            sys.stdout.write("".join(f"  {line}\n" for line in [*outcome.story, counts]))
    took_s = time.monotonic() - begun_s
    sys.stdout.write(
        f"{len(seeds)} seeds in {took_s:.1f} s, {len(failed)} failed{': ' if failed else ''}{failed or ''}\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
