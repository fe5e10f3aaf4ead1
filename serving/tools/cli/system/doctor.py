"""``serving doctor``: checks this machine and the running system, with advice for each problem."""

import http.client
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec

from serving.core.model.errors import ServingError
from serving.core.model.launch import ACME_DIRECTORY_VARIABLE
from serving.core.model.objects import is_true, name_of, namespace_of, nested
from serving.home.pods.claims import OVER_SIZE
from serving.home.processes.process_lifetime import FORKED_NAMES, age_s, children_of
from serving.home.state import StateFolder
from serving.home.supervisor.children import CHILDREN
from serving.net.cluster.kinds import CERTIFICATE, PERSISTENT_VOLUME_CLAIM, SERVING_SERVICE
from serving.tools.cli.client.api import ApiClient, Place, fail, fail_usage, place_options
from serving.tools.cli.client.checks import (
    Finding,
    check_cgroup,
    check_clock,
    check_containers,
    check_descriptors,
    check_free_ports,
    check_isolation,
    check_journal,
    check_names,
    check_pod_names,
    check_python,
    check_secrets,
    check_state,
    check_user_namespaces,
    check_volumes,
    holder_of,
)
from serving.tools.cli.client.connection import ApiRequest, connect
from serving.tools.cli.client.objects import items_of
from serving.tools.cli.client.output import Progress, output_option, paint, wrapped
from serving.tools.cli.client.shortnames import short_name_problem, short_url
from serving.tools.cli.system.issuance import host_of, problem_of

_LOOPBACK = "127.0.0.1"
_TIMEOUT_S = 5.0
_SLOW_S = 1.0
# A daemon younger than this in an older system has recently restarted.
_YOUNG_S = 15.0
_LOG_END_BYTES = 16_384
_INDEX = re.compile(rb"\0SERVING_ACTIVATOR_INDEX=(\d+)\0")
_MODULE = re.compile(rb"\0-m\0(serving\.[\w.]+)\0")

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}
_NAME_WIDTH = 14


def check_daemons(state: Path, holder: int) -> Iterator[Finding]:
    """Check that each daemon runs, and does not restart repeatedly."""
    processes = children_of(holder)
    pids = {_started_as(pid): pid for pid in processes}
    up_s = age_s(holder)
    ports = _ports(state)
    activator_count = max(1, sum(name.startswith("activator") for name in ports))
    has_acme = any(_has_variable(pid, ACME_DIRECTORY_VARIABLE) for pid in processes)
    for child in CHILDREN(activator_count, has_node_groups="nodegroup-metrics" in ports, has_acme=has_acme):
        index = child.environment.get("SERVING_ACTIVATOR_INDEX", "")
        pid, log = pids.get((child.module, index)), state / "logs" / f"{child.name}.log"
        if pid is None:
            yield Finding(name=child.name, state="fail", text=f"does not run{_last_error(log)}", advice=f"see {log}")
        elif up_s - age_s(pid) > _YOUNG_S > age_s(pid):
            text = f"started {age_s(pid):.0f} s ago, the system {up_s:.0f} s ago"
            yield Finding(name=child.name, state="warn", text=f"{text}{_last_error(log)}", advice=f"see {log}")
        else:
            yield Finding(name=child.name, state="ok", text=f"process {pid}")


def check_reach(state: Path) -> Iterator[Finding]:
    """Check that each port responds to HTTP in time, and the API accepts the kubeconfig's token."""
    try:
        ports = StateFolder(state).read_ports()
    except (OSError, ValueError) as error:
        yield Finding(name="ports", state="fail", text=f"ports.json: {error}", advice="start `serving up` again")
        return
    for name, port in ports.items():
        yield _reached(name, port)
    try:
        connection = connect(str(state / "kubeconfig"))
        response = connection.send(ApiRequest(method="GET", path="/version", headers={}, timeout_s=_TIMEOUT_S))
        status = response.status
        response.close()
    except ServingError as error:
        yield Finding(name="token", state="fail", text=str(error), advice="see logs/control.log in the state folder")
        return
    if status == http.client.OK:
        yield Finding(name="token", state="ok", text="the API takes the kubeconfig's token")
        yield from _short_names(state)
        yield from _full_volumes(state)
        yield from _missing_certificates(state)
    else:
        advice = "another system listens there; start `serving up` again"
        yield Finding(name="token", state="fail", text=f"the API answers {status}", advice=advice)


def _short_names(state: Path) -> Iterator[Finding]:
    """A line for each service that pods cannot call by its short name."""
    for service in items_of(ApiClient(state), SERVING_SERVICE, everywhere=True):
        problem = short_name_problem(service, state) if short_url(service) else ""
        if problem:
            text = f"{short_url(service)} in pods of {namespace_of(service)}: {problem}"
            advice = f"`serving url {name_of(service)} --cluster-local` prints another way"
            yield Finding(name="short name", state="warn", text=text, advice=advice)


def _full_volumes(state: Path) -> Iterator[Finding]:
    """A line for each volume with more data than its size."""
    for claim in items_of(ApiClient(state), PERSISTENT_VOLUME_CLAIM, everywhere=True):
        if is_true(claim, OVER_SIZE):
            size = nested(claim, "spec", "resources", "requests", "storage")
            text = f"{namespace_of(claim)}/{name_of(claim)} holds more than its size of {size}"
            yield Finding(name="volumes", state="warn", text=text, advice="free room in it, or request a larger size")


def _missing_certificates(state: Path) -> Iterator[Finding]:
    """A line for each host whose certificate is missing or not renewed."""
    for certificate in items_of(ApiClient(state), CERTIFICATE, everywhere=True):
        problem = problem_of(certificate)
        if problem:
            text, advice = f"{host_of(certificate)}: {problem}", f"see {state / 'logs' / 'acme.log'}, and docs/tls.md"
            yield Finding(name="certificate", state="warn", text=text, advice=advice)


def _reached(name: str, port: int) -> Finding:
    begun_s = time.monotonic()
    connection = http.client.HTTPConnection(_LOOPBACK, port, timeout=_TIMEOUT_S)
    try:
        if name == "api":
            # The port uses TLS; the next check sends a request.
            connection.connect()
        else:
            connection.request("GET", "/healthz", headers={"Host": f"localhost:{port}"})
            connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        if name == "tls" and isinstance(error, ConnectionRefusedError):
            return Finding(name=f"port {name}", state="ok", text=f"{port} is reserved until there is a certificate")
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        advice = "see the logs in the state folder"
        return Finding(name=f"port {name}", state="fail", text=f"{port}: {reason}", advice=advice)
    finally:
        connection.close()
    took_s = time.monotonic() - begun_s
    text = f"{port} answers in {took_s * 1000:.1f} ms"
    if took_s > _SLOW_S:
        return Finding(name=f"port {name}", state="warn", text=text, advice="the machine or the daemon is overloaded")
    return Finding(name=f"port {name}", state="ok", text=text)


def _ports(state: Path) -> Mapping[str, int]:
    """The ports by name; empty without a readable file, which ``check_reach`` reports."""
    try:
        return StateFolder(state).read_ports()
    except (OSError, ValueError):
        return {}


def _has_variable(pid: int, name: str) -> bool:
    try:
        return f"\0{name}=".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _started_as(pid: int) -> tuple[str, str]:
    """The module and activator index of a daemon; "" for processes forked by the template process."""
    try:
        if Path(f"/proc/{pid}/comm").read_text().strip() in FORKED_NAMES:
            return "", ""
        match = _MODULE.search(Path(f"/proc/{pid}/cmdline").read_bytes())
        index = _INDEX.search(b"\0" + Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return "", ""
    return match[1].decode() if match else "", index[1].decode() if index else ""


def _last_error(log: Path) -> str:
    """The last error in a daemon's log, "" without errors."""
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
            # The last line of a traceback: the exception.
            if re.match(r"[\w.]+(Error|Exception)\b", line):
                return f"; {line}"
            continue
        if isinstance(entry, dict) and entry.get("level") == "error":
            return f"; {entry.get('error') or entry.get('event')}"
    return ""


@click.command()
@output_option()
@click.option(
    "--repair",
    is_flag=True,
    help="Show the readable part of a damaged journal and, once confirmed, write a new journal from it.",
)
@click.option("--yes", is_flag=True, help="With --repair: skip the confirmation.")
@place_options
def doctor(*, place: Place, output: str, repair: bool, yes: bool) -> None:
    """Check this machine and the system on it, or a cluster and the system there; exit with 1 on any failed check."""
    if repair and place.state_path is None:
        fail_usage("--repair is for the journal of one machine: name its --state folder")
    if repair and place.state_path is not None:
        _repair(StateFolder(place.state_path.absolute()), is_confirmed=yes)
        return
    findings = []
    with Progress("looking at this machine" if place.state_path else "looking at the cluster"):
        for finding in _findings_of(place):
            findings.append(finding)
            if output == "text":
                _print(finding)
    counts = {word: sum(finding.state == word for finding in findings) for word in _COLORS}
    if output == "json":
        click.echo(json.dumps(msgspec.to_builtins(findings), indent=2))
    elif counts["fail"] or counts["warn"]:
        click.echo(f"\n{counts['fail']} failed, {counts['warn']} warnings, {counts['ok']} passed")
    else:
        click.echo(f"\nall {counts['ok']} checks passed")
    sys.exit(1 if counts["fail"] else 0)


def _repair(state: StateFolder, *, is_confirmed: bool) -> None:
    """Print what a journal repair would lose, and repair the journal after confirmation."""
    from serving.home.store.repair import read_damaged, write_repaired  # noqa: PLC0415 - the store, for this alone

    holder = state.holder()
    if holder is not None:
        fail(f"{state.path} is in use by process {holder}; end it with `serving down` first")
    if not state.journal.exists():
        fail(
            f"there is no {state.journal}; `serving up` creates one, `serving restore FILE` restores one from a backup"
        )
    journal = read_damaged(state.journal)
    if not journal.damage:
        click.echo(f"{state.journal} is intact; there is nothing to repair")
        return
    click.echo(f"{state.journal} is damaged: {journal.damage}")
    click.echo(f"readable: {len(journal.entries)} objects")
    for line in journal.lost:
        click.echo(f"lost: {line}")
    if not journal.entries:
        fail("nothing can be read, and nothing was changed; move the file away, then `serving restore FILE`")
    if not is_confirmed:
        click.confirm("Create a new journal from the readable objects? The damaged file is kept", abort=True)
    # The lock prevents a start of the system during the repair.
    state.lock()
    damaged = write_repaired(state.journal, journal, stamp=time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    click.echo(f"repaired; the damaged file is {damaged}")


def _findings_of(place: Place) -> Iterator[Finding]:
    if place.state_path is not None:
        return _findings(place.state_path.absolute())
    # The module loads the settings of all daemons, and more that one machine does not need.
    from serving.tools.cli.system.clusterdoctor import cluster_findings  # noqa: PLC0415 - as said

    return cluster_findings(place.api())


def _findings(state: Path) -> Iterator[Finding]:
    holder = holder_of(state)
    yield from check_python()
    yield from check_state(state, holder)
    yield from check_volumes(StateFolder(state).volumes)
    yield from check_descriptors()
    yield from check_user_namespaces()
    yield from check_cgroup()
    yield from check_containers(state)
    yield from check_names()
    yield from check_pod_names()
    yield from check_isolation()
    yield from check_secrets()
    yield from check_clock(state)
    if holder is None:
        yield Finding(name="system", state="ok", text="does not run; `serving up` starts it")
        yield from check_free_ports()
        if (state / "journal.db").exists():
            yield from check_journal(state / "journal.db")
    else:
        yield from check_daemons(state, holder)
        yield from check_reach(state)


def _print(finding: Finding) -> None:
    Progress.hide()
    mark = paint(finding.state.ljust(4), _COLORS[finding.state])
    indent = " " * (7 + _NAME_WIDTH)
    first, *rest = wrapped(finding.text, indent=indent) or [""]
    click.echo(f"{mark}  {finding.name:<{_NAME_WIDTH}} {first.strip()}")
    for line in (*rest, *wrapped(finding.advice, indent=indent)):
        click.echo(line)
