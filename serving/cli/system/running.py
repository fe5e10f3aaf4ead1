"""What ``serving doctor`` looks at while ``serving up`` runs: are its daemons there, do they answer, do they stay."""

import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

from serving.cli.client.checks import Finding
from serving.cli.client.connection import ApiRequest, connect
from serving.home.processes.process_lifetime import FORKED_NAMES, age_s, children_of
from serving.home.state import StateFolder
from serving.home.supervisor.children import CHILDREN
from serving.model.errors import ServingError

_LOOPBACK = "127.0.0.1"
_TIMEOUT_S = 5.0
_SLOW_S = 1.0
# One that is younger while the system is older has ended lately.
_YOUNG_S = 15.0
_LOG_END_BYTES = 16_384
_INDEX = re.compile(rb"\0SERVING_ACTIVATOR_INDEX=(\d+)\0")
_MODULE = re.compile(rb"\0-m\0(serving\.[\w.]+)\0")


def check_daemons(state: Path, holder: int) -> Iterator[Finding]:
    """Each child of the supervisor: that it is there, and that it does not start again and again."""
    pids = {_started_as(pid): pid for pid in children_of(holder)}
    up_s = age_s(holder)
    for child in CHILDREN(_activator_count(state)):
        index = child.environment.get("SERVING_ACTIVATOR_INDEX", "")
        pid, log = pids.get((child.module, index)), state / "logs" / f"{child.name}.log"
        if pid is None:
            yield Finding(name=child.name, state="fail", text=f"does not run{_last_words(log)}", advice=f"see {log}")
        elif up_s - age_s(pid) > _YOUNG_S > age_s(pid):
            text = f"started {age_s(pid):.0f} s ago, the system {up_s:.0f} s ago"
            yield Finding(name=child.name, state="warn", text=f"{text}{_last_words(log)}", advice=f"see {log}")
        else:
            yield Finding(name=child.name, state="ok", text=f"process {pid}")


def check_reach(state: Path) -> Iterator[Finding]:
    """Check that each port answers HTTP in time, and that the API accepts the kubeconfig's token."""
    try:
        ports = StateFolder(state).read_ports()
    except (OSError, ValueError) as error:
        yield Finding(name="ports", state="fail", text=f"ports.json: {error}", advice="start `serving up` again")
        return
    for name, port in ports.items():
        yield _reached(name, port)
    try:
        connection = connect(state / "kubeconfig")
        answer = connection.send(ApiRequest(method="GET", path="/version", headers={}, timeout_s=_TIMEOUT_S))
        status = answer.status
        answer.close()
    except ServingError as error:
        yield Finding(name="token", state="fail", text=str(error), advice="see the log of control")
        return
    if status == http.client.OK:
        yield Finding(name="token", state="ok", text="the API takes the kubeconfig's token")
    else:
        advice = "another system listens there; start `serving up` again"
        yield Finding(name="token", state="fail", text=f"the API answers {status}", advice=advice)


def _reached(name: str, port: int) -> Finding:
    begun_s = time.monotonic()
    connection = http.client.HTTPConnection(_LOOPBACK, port, timeout=_TIMEOUT_S)
    try:
        if name == "api":
            # It speaks TLS; the next check sends a request.
            connection.connect()
        else:
            connection.request("GET", "/healthz", headers={"Host": f"localhost:{port}"})
            connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        if name == "tls" and isinstance(error, ConnectionRefusedError):
            return Finding(name=f"port {name}", state="ok", text=f"{port} is reserved until there is a certificate")
        said = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        advice = "see the logs in the state folder"
        return Finding(name=f"port {name}", state="fail", text=f"{port}: {said}", advice=advice)
    finally:
        connection.close()
    took_s = time.monotonic() - begun_s
    text = f"{port} answers in {took_s * 1000:.1f} ms"
    if took_s > _SLOW_S:
        return Finding(name=f"port {name}", state="warn", text=text, advice="the machine or the daemon is overloaded")
    return Finding(name=f"port {name}", state="ok", text=text)


def _activator_count(state: Path) -> int:
    """How many there are meant to be: each has a port for its metrics."""
    try:
        ports = StateFolder(state).read_ports()
    except (OSError, ValueError):
        return 1
    return max(1, sum(name.startswith("activator") for name in ports))


def _started_as(pid: int) -> tuple[str, str]:
    """A daemon's module, and its index if it is an activator; "" for what the template forked."""
    try:
        if Path(f"/proc/{pid}/comm").read_text().strip() in FORKED_NAMES:
            return "", ""
        match = _MODULE.search(Path(f"/proc/{pid}/cmdline").read_bytes())
        index = _INDEX.search(b"\0" + Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return "", ""
    return match[1].decode() if match else "", index[1].decode() if index else ""


def _last_words(log: Path) -> str:
    """The last error in a daemon's log, "" if it has none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_END_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            # Python's own last line: what was raised.
            if re.match(r"[\w.]+(Error|Exception)\b", line):
                return f"; {line}"
            continue
        if isinstance(entry, dict) and entry.get("level") == "error":
            return f"; {entry.get('error') or entry.get('event')}"
    return ""
