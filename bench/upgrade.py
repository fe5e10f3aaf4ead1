"""``make upgrade``: replaces the code of a running system by another version and back, under load.

    python bench/upgrade.py [--from COMMIT] [--requests N] [--per-second N] [--keep] [--quick] [--json]

A clone of this repository runs FROM (a commit or a tag): services of each kind (processes, from a warm process,
dormant, and as containers where this user can run them as root), with a websocket open to one. Then its files become
those of the last commit here, and ``serving up --reload`` has the system take them: an upgrade. A downgrade, an upgrade
and a reload without a change follow in the same way. Where the two ask for other packages, the system runs in a virtual
environment of its own, in which each step installs those of its commit. Meanwhile clients send ``--per-second``
requests on kept connections, ``--requests`` at least.

Each request must succeed, the websocket stay open, each pod of before be there with the same process, and all objects
of the API be equal to those before, but for what docs/version-skew.md lists. Exit 0 only if all that holds.
"""

import argparse
import asyncio
import collections
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

from bench.cold_start import IMAGE, compiled_for_both
from bench.parts.program import options_of, show
from bench.parts.system import SERVICES, System, running_system, service_of

ROOT = Path(__file__).parents[1]
SOCKET_APP = ROOT / "tests" / "e2e" / "client_app.py"
FROM = "0e8ae83a"
RELOAD = "reload"
READY_WITHIN_S = 240.0
RESPONSE_WITHIN_S = 60.0
# The dormant pod sleeps between two of its requests.
DORMANT_AFTER, DORMANT_PERIOD_S = "500ms", 2.0
CLIENTS = {"process": 11, "warm": 5, "container": 4}
# One pod each: what scales is no loss and no difference.
KEPT = {"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "1"}
# docs/version-skew.md has this list, with the reasons.
_KINDS_LEFT_OUT = {"Event", "Lease", "NodeMetrics", "PodMetrics"}
_FIELDS_LEFT_OUT = {"resourceVersion", "managedFields", "lastTransitionTime"}
_LEARNT = {f"autoscaling.serving.dev/{name}" for name in ("learnt", "savings", "gaps", "curve")}
# They stay over a reload, but an older version writes them again.
_OF_OLDER = {"serving.knative.dev/routingStateModified"}
_PODS = "/api/v1/pods "
# An older version gives other ones to what it makes again.
_IDENTITY = {"uid", "creationTimestamp"}
_DERIVED = (
    "/api/",
    "/apis/apps/",
    "/apis/discovery.k8s.io/",
    "/apis/autoscaling.internal.knative.dev/",
    "/apis/networking.internal.knative.dev/",
)
_GENERATIONS = {"generation", "observedGeneration"}
_DORMANT = "serving.dev/Dormant"


class Clients:
    """Requests on kept connections at an even rate, counted by what came back."""

    def __init__(self, port: int, *, period_s: float) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.longest_s = 0.0
        self._port, self._period_s = port, period_s

    @property
    def sent(self) -> int:
        """All requests that have ended."""
        return self.counts.total()

    @property
    def failures(self) -> dict[str, int]:
        """Failed requests, by status or error."""
        return {text: count for text, count in self.counts.items() if not text.endswith(" 200")}

    async def run(self, service: str, period_s: float | None = None) -> None:
        """Send one request after the other, each at its time, until cancelled."""
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + (period_s or self._period_s), time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            begun_s = time.monotonic()
            try:
                async with asyncio.timeout(RESPONSE_WITHIN_S):
                    connection = connection or await asyncio.open_connection("127.0.0.1", self._port)
                    status, is_kept = await _get(*connection, host=f"{service}.default.localhost")
            except (OSError, EOFError, TimeoutError) as error:
                status, is_kept = repr(error), False
            self.counts[f"{service} {status}"] += 1
            self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
            if connection is not None and not is_kept:
                connection[1].close()
                connection = None


async def _get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, host: str) -> tuple[str, bool]:
    """The status of one GET, and whether the connection stays open. Raises ``OSError``, ``EOFError``."""
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
    await reader.readexactly(int(lines["content-length"]))
    return head.split(" ")[1], lines.get("connection") != "close"


class Echo:
    """A websocket that is open all the time; counts echoes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.count = 0

    async def run(self) -> None:
        """Send a word every 100 ms and expect it twice, until cancelled. Raises when the socket ends."""
        async with (
            aiohttp.ClientSession(headers={"Host": "socket.default.localhost"}) as session,
            session.ws_connect(f"http://127.0.0.1:{self._port}/socket") as socket,
        ):
            while True:
                await socket.send_str("ab")
                assert await socket.receive_str(timeout=RESPONSE_WITHIN_S) == "abab"
                self.count += 1
                await asyncio.sleep(0.1)


def deploy(system: System, folder: Path) -> list[str]:
    """Deploy a service of each kind; return those that clients ask."""
    hello = folder / "hello"
    hello.mkdir()
    shutil.copy(ROOT / "serving" / "tools" / "samples" / "hello.py", hello / "main.py")
    shutil.copy(SOCKET_APP, hello / "socket_app.py")
    results = [flag for name, text in KEPT.items() for flag in ("--annotate", f"{name}={text}")]
    python = shlex.quote(sys.executable)
    sleeps = ("--annotate", f"serving.dev/dormant=after={DORMANT_AFTER}")
    system.serving("deploy", "process", str(hello), "--command", f"{python} main.py", *results)
    system.serving("deploy", "warm", str(hello), "--command", f"{python} main.py", "--preload", *results)
    system.serving("deploy", "dormant", str(hello), "--command", f"{python} main.py", *results, *sleeps)
    system.serving("deploy", "socket", str(hello), "--command", f"{python} socket_app.py", *results)
    at_zero = ("--annotate", "autoscaling.knative.dev/initial-scale=0")
    system.serving("deploy", "idle", str(hello), "--command", f"{python} main.py", *at_zero)
    names = ["process", "warm"]
    if os.geteuid() == 0 and shutil.which("crun") and shutil.which("cc"):
        # The app takes one connection at a time.
        compiled_for_both(folder, system)
        system.send_request(
            SERVICES, service_of("container", annotations=KEPT, concurrency=1, image=IMAGE), method="POST"
        )
        names.append("container")
    system.until_ready(len(names) + 3, READY_WITHIN_S)
    return names


def lists_of(system: System) -> Iterator[dict[str, Any]]:
    """The list of each kind that the API serves."""
    groups = [f"/apis/{group['preferredVersion']['groupVersion']}" for group in system.send_request("/apis")["groups"]]
    for path in ("/api/v1", *groups):
        for resource in system.send_request(path)["resources"]:
            if "list" in resource["verbs"] and resource["kind"] not in _KINDS_LEFT_OUT:
                entry = system.send_request(f"{path}/{resource['name']}")
                yield {"items": entry["items"], "resource": f"{path.rpartition('/')[0]}/{resource['name']}"}


def objects(system: System) -> dict[str, Any]:
    """All objects, as ``kubectl get -A -o yaml`` shows them, by their names."""
    return {
        f"{list_['resource']} {item['metadata'].get('namespace', '')}/{item['metadata']['name']}": item
        for list_ in lists_of(system)
        for item in list_["items"]
    }


def differences(before: Any, after: Any, path: str, left_out: set[str]) -> Iterator[str]:  # noqa: ANN401 - JSON
    """The paths at which two objects differ, with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        if before.get("type") == after.get("type") == _DORMANT:
            return
        for key in sorted({*before, *after} - left_out):
            yield from differences(before.get(key), after.get(key), f"{path}.{key}", left_out)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (first, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(first, other, f"{path}[{number}]", left_out)
    elif before != after:
        yield f"{path}: {json.dumps(before)} -> {json.dumps(after)}"


def unexpected(before: dict[str, Any], after: dict[str, Any], *, has_older: bool) -> Iterator[str]:
    """The differences that docs/version-skew.md does not list. ``has_older``: the older version wrote one of them."""
    for name in sorted({*before, *after}):
        is_derived = name.startswith(_DERIVED)
        left_out = _FIELDS_LEFT_OUT | (_GENERATIONS if is_derived else _LEARNT)
        if has_older:
            left_out |= _OF_OLDER | (_IDENTITY if is_derived else set())
        elif name.startswith(_PODS):
            first, other = (_identity(state.get(name)) for state in (before, after))
            yield from differences(first, other, name, set())
        yield from differences(before.get(name), after.get(name), name, left_out)


def _identity(whole: dict[str, Any] | None) -> dict[str, str]:
    return {key: whole["metadata"][key] for key in _IDENTITY} if whole else {}


def app_pids(system: System) -> dict[str, int]:
    """The process of each pod's app by the pod's name, as the template's records have them."""
    pids: dict[str, int] = {}
    for path in (system.state / "processes").glob("*.process"):
        record = json.loads(path.read_bytes())
        if record.get("is_app") and record.get("exit_code") is None:
            pids[f"{record['pod']} {record['name']}"] = record["pid"]
    return pids


def replace_code(clone: Path, commit: str, python: str) -> None:
    """Make the files of the clone those of a commit, and the packages too, as an upgrade of the package does."""
    subprocess.run(["git", "-C", str(clone), "checkout", "--quiet", "--force", commit], check=True)  # noqa: S607
    if python != sys.executable:
        command = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*command, "--constraint", str(clone / "constraints.txt"), *_packages(commit)[0]], check=True)


def _packages(commit: str) -> tuple[list[str], str]:
    """The required packages of a commit, and its pinned versions."""
    pinned, project = (
        subprocess.check_output(["git", "-C", str(ROOT), "show", f"{commit}:{name}"], text=True)  # noqa: S607
        for name in ("constraints.txt", "pyproject.toml")
    )
    return tomllib.loads(project)["project"]["dependencies"], pinned


def python_for(folder: Path, commits: tuple[str, str]) -> str:
    """The interpreter of the system: this one, or one of an own environment if the commits ask for other packages."""
    if _packages(commits[0]) == _packages(commits[1]):
        return sys.executable
    venv.create(folder / "venv", with_pip=True)
    return str(folder / "venv" / "bin" / "python")


async def replaced_under_load(
    system: System, clone: Path, steps: list[tuple[str, str]], options: argparse.Namespace, python: str
) -> dict[str, object]:
    """Carry out the steps while clients ask; the figures, with ``wrong`` empty if all went well."""
    services = deploy(system, clone.parent)
    clients = Clients(system.port, period_s=sum(CLIENTS[service] for service in services) / options.per_second)
    echo, wrong, took_s = Echo(system.port), list[str](), dict[str, float]()
    begun_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(clients.run(service)) for service in services for _ in range(CLIENTS[service])]
        tasks.append(group.create_task(clients.run("dormant", DORMANT_PERIOD_S)))
        tasks.append(group.create_task(echo.run()))
        while not echo.count or clients.sent < options.per_second:  # noqa: ASYNC110 - counts, which have no event
            await asyncio.sleep(0.1)
        before, pids = await asyncio.to_thread(objects, system), app_pids(system)
        for number, (name, commit) in enumerate(steps, 1):
            step_s = time.monotonic()
            await asyncio.to_thread(replace_code, clone, commit, python)
            await asyncio.to_thread(system.serving, "up", "--reload")
            took_s[f"{number} {name} s"] = round(time.monotonic() - step_s, 1)
            # Until each client has been answered by what is new.
            goal = max(clients.sent + options.per_second, options.requests * number // len(steps))
            while clients.sent < goal:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)
            after, is_same = await asyncio.to_thread(objects, system), name == RELOAD
            wrong += [f"{name}: {text}" for text in unexpected(before, after, has_older=not is_same)]
            before = after
            lost = {text for text, pid in pids.items() if app_pids(system).get(text) != pid}
            wrong += [f"{name}: the app of pod {text} is another process" for text in sorted(lost)]
        for task in tasks:
            task.cancel()
    seconds = time.monotonic() - begun_s
    return {
        **took_s,
        "requests": clients.sent,
        "failed": sum(clients.failures.values()),
        "failures": clients.failures,
        "per_second": round(clients.sent / seconds),
        "longest_s": round(clients.longest_s, 2),
        "services": [*services, "dormant", "socket", "idle"],
        "echoes": echo.count,
        "pods": len(pids),
        "objects": len(before),
        "wrong": wrong,
    }


def main() -> int:
    """Run, print, and return the exit code."""
    options = options_of(
        __doc__,
        quick={"requests": 600, "per_second": 50},
        requests=10_000,
        per_second=200,
        keep=False,
        **{"from": FROM},
    )
    commit = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", "HEAD"], text=True).strip()  # noqa: S607
    older = getattr(options, "from")
    folder = Path(tempfile.mkdtemp(prefix="upgrade-"))
    clone = folder / "clone"
    try:
        subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(clone)], check=True)  # noqa: S607
        python = python_for(folder, (older, commit))
        replace_code(clone, older, python)
        # Before the packages that are installed: all processes of the system have the code of the clone.
        os.environ["PYTHONPATH"] = str(clone)
        os.chdir(folder)
        steps = [("upgrade", commit), ("downgrade", older), ("upgrade again", commit), (RELOAD, commit)]
        environment = {"SERVING_AUTOSCALER_ALLOW_ZERO_INITIAL_SCALE": "true"}
        with running_system(parent=folder, environment=environment, python=python) as system:
            replaced = asyncio.run(replaced_under_load(system, clone, steps, options, python))
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    packages = "the same" if python == sys.executable else "of each commit"
    show({"from": older, "to": commit[:8], "packages": packages, **replaced}, options)
    return 0 if not replaced["failed"] and not replaced["wrong"] else 1


if __name__ == "__main__":
    sys.exit(main())
