"""How long each command of the CLI takes: `python bench/commands.py`.

Starts a system on free ports with one service, runs each command several times as a process of its own, and prints the median and
the slowest time, and the median of its CPU time, which a busy machine changes less. The first line is an interpreter that does
nothing: what no command can be faster than.
"""

import contextlib
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from serving.home.supervisor.binding import PORTS
from serving.samples import hello

ROUNDS = 7
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


@contextlib.contextmanager
def system(state: Path) -> Iterator[None]:
    """A running system."""
    ports = [f"--{port.name}-port=0" for port in PORTS]
    command = [sys.executable, "-m", "serving", "up", f"--state={state}", *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("serving is up")
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def timed_ms(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Milliseconds from the start of a process to its end, and of CPU that it took."""
    begun_s, begun_cpu_s = time.perf_counter(), _children_cpu_s()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - begun_s) * 1000, (_children_cpu_s() - begun_cpu_s) * 1000


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        state, manifest = Path(folder) / "serving", Path(folder) / "manifest.yaml"
        manifest.write_text(MANIFEST)
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        environment["XDG_STATE_HOME"] = folder
        serving = [sys.executable, "-m", "serving"]
        with system(state):
            app = f"{sys.executable} {hello.__file__}"
            deploy = ["deploy", "hello", folder, "--no-snapshot", "--command", app, "--min-scale", "1"]
            subprocess.run([*serving, *deploy], env=environment, check=True, stdout=subprocess.DEVNULL)
            # `doctor` exits with 1 where a port of this machine is in use; its time is the same.
            print(f"{'command':28} {'median':>9} {'slowest':>9} {'CPU':>9}")
            for text in ("", *COMMANDS):
                words = text.format(manifest=manifest).split()
                command = [*serving, *words] if words else [sys.executable, "-c", "pass"]
                rounds = [timed_ms(command, environment) for _ in range(ROUNDS)]
                times_ms, cpu_ms = [time_ms for time_ms, _ in rounds], statistics.median(cpu for _, cpu in rounds)
                name = f"serving {text}" if text else "python -c pass"
                print(f"{name[:28]:28} {statistics.median(times_ms):6.0f} ms {max(times_ms):6.0f} ms {cpu_ms:6.0f} ms")


if __name__ == "__main__":
    main()
