"""How long each command of the CLI takes.

    python bench/commands.py [--rounds N] [--quick] [NAME ...]

Starts a system on free ports with one service, runs each command several times as a process of its own, and prints the median and
the slowest time, and the median of its CPU time, which a busy machine changes less. The first line is an interpreter that does
nothing: what no command can be faster than.
"""

import os
import resource
import statistics
import subprocess
import sys
import time

from bench.parts.program import options_of
from bench.parts.system import running_system
from serving.tools.samples import hello

COMMANDS = (
    "--version",
    "--help",
    "get",
    "get revisions",
    "get pods",
    "describe hello",
    "url hello",
    "logs hello",
    "invoke hello",
    "traffic hello",
    "wait hello",
    "why hello",
    "top --once",
    "config show",
    "doctor",
    "apply -f {manifest}",
)
MANIFEST = "{apiVersion: v1, kind: ConfigMap, metadata: {name: timed}, data: {key: value}}"


def timed_ms(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Milliseconds of a process from start to end, and of its CPU time."""
    begun_s, begun_cpu_s = time.perf_counter(), _children_cpu_s()
    # `doctor` exits with 1 where a port of this machine is in use; its time is the same.
    is_checked = "doctor" not in command
    subprocess.run(command, env=environment, check=is_checked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - begun_s) * 1000, (_children_cpu_s() - begun_cpu_s) * 1000


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure, and print a table."""
    options = options_of(__doc__, rounds=7, names=COMMANDS, quick={"rounds": 1, "names": ("--version", "get")})
    with running_system() as system:
        manifest = system.state / "manifest.yaml"
        manifest.write_text(MANIFEST)
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        environment["XDG_STATE_HOME"] = str(system.state.parent)
        app = f"{sys.executable} {hello.__file__}"
        system.serving(*["deploy", "hello", ".", "--no-snapshot", "--min-scale", "1", "--command"], app)
        print(f"{'command':28} {'median':>9} {'slowest':>9} {'CPU':>9}")
        for text in ("", *options.names):
            words = text.format(manifest=manifest).split()
            command = [sys.executable, "-m", "serving", *words] if words else [sys.executable, "-c", "pass"]
            rounds = [timed_ms(command, environment) for _ in range(options.rounds)]
            times_ms, cpu_ms = [time_ms for time_ms, _ in rounds], statistics.median(cpu for _, cpu in rounds)
            name = f"serving {text}" if text else "python -c pass"
            print(f"{name[:28]:28} {statistics.median(times_ms):6.0f} ms {max(times_ms):6.0f} ms {cpu_ms:6.0f} ms")


if __name__ == "__main__":
    main()
