"""The second half of ``make soak``: services come and go, and memory stays.

    python bench/soak_control.py [--cycles N] [--at-once N] [--quick]

In each cycle a service is created, answers a request and is deleted, until its pods are gone. The memory of each
daemon, in RAM and swapped out, is read every 100 cycles; after the first 200 it may grow by 10 percent. Exit 0 only if
that holds.
"""

import concurrent.futures
import contextlib
import http.client
import json
import shlex
import sys
import time
from pathlib import Path

from bench.parts.processes import resident_mib
from bench.parts.program import exit_code, options_of
from bench.parts.system import SERVICES, System, running_system, service_of
from serving.tools.samples import hello

DAEMONS = {
    "control": "serving.home.main",
    "template": "serving.home.processes.template",
    "autoscaler": "serving.autoscaler.main",
    "activator": "serving.activator.main",
    "dashboard": "serving.tools.dashboard.main",
}
STEP_CYCLES = 100
# By then caches are full, and the store's history has its age.
WARM_CYCLES = 200
GROWTH_MAX = 1.10
# What the last cycle left is gone by then.
SETTLE_S = 3.0
WITHIN_S = 60.0
POLL_S = 0.1

Sample = dict[str, float]


def cycle(system: System, name: str) -> None:
    """Create one service, send it requests until one is answered, and delete it with its pods.

    Raises ``TimeoutError``.
    """
    app = Path(hello.__file__)
    annotations = {"serving.dev/command": shlex.join([sys.executable, str(app)]), "serving.dev/dir": str(app.parent)}
    system.send_request(SERVICES, service_of(name, annotations=annotations), method="POST")
    until_s = time.monotonic() + WITHIN_S
    while not _responses(system, name):
        if time.monotonic() > until_s:
            raise TimeoutError(f"{name} does not answer: {system.send_request(f'{SERVICES}/{name}').get('status')}")
        time.sleep(POLL_S)
    system.send_request(f"{SERVICES}/{name}", method="DELETE")
    while system.pods(name):
        if time.monotonic() > until_s:
            raise TimeoutError(f"{name} is deleted, its pods stay")
        time.sleep(POLL_S)


def _responses(system: System, name: str) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", system.port, timeout=WITHIN_S)) as connection:
        connection.request("GET", "/", headers={"Host": f"{name}.default.localhost"})
        response = connection.getresponse()
        response.read()
    return response.status == http.client.OK


def soak(system: System, cycles: int, at_once: int) -> dict[int, Sample]:
    """The memory of each daemon in MiB, by the number of cycles."""
    samples: dict[int, Sample] = {}
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for first in range(0, cycles, STEP_CYCLES):
            names = [f"soak-{number}" for number in range(first, min(first + STEP_CYCLES, cycles))]
            list(pool.map(lambda name: cycle(system, name), names))
            time.sleep(SETTLE_S)
            result = {name: round(resident_mib(system.daemon(module)), 1) for name, module in DAEMONS.items()}
            samples[first + len(names)] = result
            print(first + len(names), result, file=sys.stderr, flush=True)
    return samples


def wrong_of(samples: dict[int, Sample]) -> list[str]:
    """What grew."""
    warm = {name: max(sample[name] for count, sample in samples.items() if count <= WARM_CYCLES) for name in DAEMONS}
    end = samples[max(samples)]
    return [
        f"{name}: memory grew from {warm[name]} to {end[name]} MiB"
        for name in DAEMONS
        if end[name] > warm[name] * GROWTH_MAX
    ]


def main() -> int:
    """Run, print, and say by the exit code whether it held."""
    options = options_of(__doc__, cycles=2000, at_once=4, quick={"cycles": 4})
    with running_system() as system:
        samples = soak(system, options.cycles, options.at_once)
    wrong = wrong_of(samples)
    print(json.dumps({"cycles": options.cycles, "memory_mib": samples, "wrong": wrong}, indent=2))
    return exit_code(options, is_met=not wrong)


if __name__ == "__main__":
    sys.exit(main())
