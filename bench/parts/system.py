"""A whole ``serving up`` on ports and in a folder of its own.

Nothing here measures. It starts, deploys, asks and kills as a user would: through the CLI, the API and signals.
"""

import base64
import contextlib
import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.parts.processes import resident_mib
from serving.core.model.objects import condition_of, is_true
from serving.home.processes.process_lifetime import FORKED_NAMES
from serving.home.supervisor.binding import PORTS

_SERVING_GROUP = "/apis/serving.knative.dev/v1/namespaces/default"
SERVICES = f"{_SERVING_GROUP}/services"
"""The path of services in the API."""

_POLL_S = 0.2


class System:
    """A system that runs. ``port`` is the public one; ``server`` is the URL of its API."""

    def __init__(
        self, state: Path, environment: Mapping[str, str], flags: Sequence[str], python: str = sys.executable
    ) -> None:
        self.state = state
        self._python = python
        command = [python, "-m", "serving", "up", "--state", str(state), *flags]
        self.process = subprocess.Popen(
            [*command, *(f"--{port.name}-port=0" for port in PORTS)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self.process.stdout
        match = re.search(r"localhost:(\d+)", self.process.stdout.readline())
        assert match, "serving up says where services answer"
        self.port = int(match[1])
        config = json.loads((state / "kubeconfig").read_text())
        cluster = config["clusters"][0]["cluster"]
        self.server: str = cluster["server"]
        self.authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.tls = ssl.create_default_context(cadata=self.authority)
        self.headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}

    def serving(self, *arguments: str) -> str:
        """Output of a command of the CLI. Raises ``RuntimeError`` with its messages if it fails."""
        command = [self._python, "-m", "serving", *arguments, "--state", str(self.state)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        sys.stderr.write(done.stderr)
        if done.returncode:
            raise RuntimeError(f"serving {shlex.join(arguments)}: exit code {done.returncode}: {done.stderr}")
        return done.stdout

    def send_request(self, path: str, body: object = None, *, method: str = "GET") -> Any:  # noqa: ANN401 - JSON
        """One call of the API. Raises ``OSError`` with its message."""
        data = None if body is None else json.dumps(body).encode()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(  # noqa: S310 - our own server
            self.server + path, data=data, method=method, headers={"Content-Type": kind, **self.headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=60, context=self.tls) as response:  # noqa: S310 - as above
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise OSError(json.load(error).get("message", error.reason)) from error

    def revisions(self) -> list[dict[str, Any]]:
        """All revisions, oldest first."""
        items: list[dict[str, Any]] = self.send_request(f"{_SERVING_GROUP}/revisions")["items"]
        return sorted(
            items, key=lambda resource: (resource["metadata"]["creationTimestamp"], resource["metadata"]["name"])
        )

    def pods(self, service: str) -> list[dict[str, Any]]:
        """The pods of a service that are there and not going."""
        selector = f"serving.knative.dev/service={service}"
        items = self.send_request(f"/api/v1/namespaces/default/pods?labelSelector={selector}")["items"]
        return [pod for pod in items if not pod["metadata"].get("deletionTimestamp")]

    def until_ready(self, count: int, within_s: float) -> None:
        """Wait for the Ready condition of so many services.

        Raises:
            TimeoutError: not so many are ready in time.
            RuntimeError: a revision has failed, which becomes ready only by a change of its service.
        """
        until_s = time.monotonic() + within_s
        while True:
            services = self.send_request(SERVICES)["items"]
            ready_count = sum(is_true(service, "Ready") for service in services)
            if ready_count == count:
                return
            for service in services:
                condition = condition_of(service, "ConfigurationsReady")
                if condition.get("status") == "False" and condition.get("reason") == "RevisionFailed":
                    raise RuntimeError(f"{service['metadata']['name']}: {condition.get('message')}")
            if time.monotonic() > until_s:
                raise TimeoutError(f"{ready_count} of {count} services are ready")
            time.sleep(_POLL_S)

    def until_zero(self, service: str, within_s: float) -> bool:
        """Whether all of a service's revisions come to zero in time."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            mine = [
                revision
                for revision in self.revisions()
                if revision["metadata"]["labels"]["serving.knative.dev/service"] == service
            ]
            if all(resource["spec"]["servingState"] == "Reserve" for resource in mine) and not self.pods(service):
                return True
            time.sleep(_POLL_S)
        return False

    def daemon(self, module: str) -> int:
        """The process id of a child of the supervisor, the first if there are several. Raises ``LookupError``."""
        daemons = self.daemons(module)
        if not daemons:
            raise LookupError(module)
        return daemons[0]

    def activator_pages(self) -> list[int]:
        """The ports of the activators' pages of metrics."""
        ports: dict[str, int] = json.loads((self.state / "ports.json").read_text())
        return [port for name, port in ports.items() if name.startswith("activator") and name.endswith("-metrics")]

    def daemons_mib(self) -> int:
        """The resident memory of all daemons."""
        pids = [pid for module in ("main", "processes.template") for pid in self.daemons(f"serving.home.{module}")[:1]]
        for module in ("activator", "autoscaler", "tools.dashboard"):
            pids += self.daemons(f"serving.{module}.main")
        found_mib = 0.0
        for pid in pids:
            with contextlib.suppress(OSError):
                found_mib += resident_mib(pid)
        return round(found_mib)

    def daemons(self, module: str) -> list[int]:
        """The process ids of all children of the supervisor that run a module, oldest first.

        A pod's process is none.
        """
        results = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().decode().split("\0")
                if parent == self.process.pid and module in command and _name(entry) not in FORKED_NAMES:
                    results.append(int(entry.name))
        return sorted(results)

    def kill(self, module: str) -> None:
        """SIGKILL to one daemon."""
        os.kill(self.daemon(module), signal.SIGKILL)


def _name(entry: Path) -> str:
    return (entry / "comm").read_text().strip()


def service_of(
    name: str,
    *,
    annotations: Mapping[str, str],
    concurrency: int | None = None,
    command: Sequence[str] = (),
    **container: object,
) -> dict[str, Any]:
    """The manifest of a service with one container, of which ``container`` are fields.

    ``command`` is of this machine, in place of the image.
    """
    if command:
        annotations = {**annotations, "serving.dev/command": shlex.join(command)}
    spec: dict[str, Any] = {"containers": [{"image": f"dev.local/{name}", **container}]}
    if concurrency is not None:
        spec["containerConcurrency"] = concurrency
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"metadata": {"annotations": dict(annotations)}, "spec": spec}},
    }


@contextlib.contextmanager
def running_system(
    *flags: str, parent: Path | None = None, environment: Mapping[str, str] | None = None, python: str = sys.executable
) -> Iterator[System]:
    """A system that ends with the block. ``flags`` are of ``serving up``, ``environment`` is added to ours.

    Its state is in a folder "serving" of a new folder below ``parent``; None is where temporary files are.
    """
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        system = System(Path(folder) / "serving", environment or {}, flags, python)
        try:
            yield system
        finally:
            system.process.send_signal(signal.SIGTERM)
            system.process.wait()
            assert system.process.stdout
            system.process.stdout.close()
