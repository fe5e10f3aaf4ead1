"""``serving up``: runs the whole system on this machine, in the foreground or background, or reloads it."""

import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from serving.core.model.errors import InvalidCertificate, InvalidValue, Problem, SettingsError
from serving.core.model.knative import WINDOW_ANNOTATION
from serving.core.model.launch import USAGE_EXIT
from serving.core.model.ports import PORT_MAX
from serving.core.model.quantity import parse_quantity
from serving.core.model.versions import NEWER_PODS, POD_RECORDS, refuse_newer
from serving.home.containers.network import bind_gateway, gateway_of
from serving.home.processes.confine import ISOLATION_VARIABLE
from serving.home.processes.isolation import GAP_VARIABLE, MODES, isolation_gap
from serving.home.processes.processrecords import ProcessRecords
from serving.home.state import StateFolder, default_state_path
from serving.home.store.migrations import refuse_newer_journal
from serving.home.supervisor.binding import PORTS, bind
from serving.home.supervisor.children import CHILDREN
from serving.home.supervisor.main import SupervisorLaunch, become_supervisor
from serving.home.supervisor.notify import SystemdNotifier, pop_variables
from serving.home.supervisor.reloading import read_reload
from serving.net.aio.ownlog import BYTES_VARIABLE, FILES_VARIABLE, LOG_FILES_MAX
from serving.tools.cli.client.api import adding, fail, fail_usage
from serving.tools.cli.client.output import Progress, print_aside
from serving.tools.cli.nodes.nodeflags import NODE_FLAGS, nodes_environment, with_node_flags
from serving.tools.cli.system.publicflags import PublicFlags, with_public_flags

# The file descriptor on which the background system reports its start.
_READY_VARIABLE = "SERVING_UP_READY_FD"

_LOG = "up.log"
# Four daemons with one second each, on a machine under heavy load.
_READY_S = 180.0
_EXIT_FAILED = 1
# Variables that only `serving up` reads.
_OWN = frozenset({"SERVING_ACTIVATOR_COUNT"})
_DAEMONS = ("ACTIVATOR", "AUTOSCALER", "CONTROLLER", "DASHBOARD", "NODEGROUP", "PLACEMENT")
_SETTING = re.compile(rf"SERVING_({'|'.join(_DAEMONS)})_\w+")
_NAME = "serving"
_TLS = "SERVING_ACTIVATOR_TLS_"
_TLS_SOURCES = ("CERTIFICATE_FILES", "FOLDER", "SECRETS")


def start_in_background(arguments: Sequence[str], logs: Path) -> int:
    """Run ``serving up`` in the background, and print its output up to the start; return the exit code."""
    log = logs / _LOG
    try:
        # New parent folders have the umask's mode, but the state folder is always private.
        for folder in (logs.parent, logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        output = log.open("ab")
    except OSError as error:
        click.echo(f"{error.filename}: {error.strerror}; expected a folder that can be written", err=True)
        return USAGE_EXIT
    mine, its = os.pipe()
    with output:
        begin = output.tell()
        process = subprocess.Popen(  # noqa: S603 - our own CLI
            [sys.executable, "-m", "serving", "up", *arguments],
            env={**os.environ, _READY_VARIABLE: str(its)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[its],
            start_new_session=True,
        )
    os.close(its)
    with os.fdopen(mine, "rb") as pipe:
        try:
            is_late = not select.select([pipe], [], [], _READY_S)[0]
        except KeyboardInterrupt:
            process.terminate()
            raise
        has_started = not is_late and bool(pipe.read())
    code = 0 if has_started else _EXIT_FAILED if is_late else process.wait()
    # The process outlives this command.
    process.returncode = 0
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    if not (text or has_started or is_late):
        text = f"serving has ended, and wrote nothing to {log}: make sure that its disk is not full\n"
    click.echo(text, nl=False, err=not has_started)
    if is_late:
        click.echo(
            f"serving has not started after {_READY_S:g} s and continues to start; see {logs}; `serving down` ends it",
            err=True,
        )
    return code


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise ``SettingsError`` for invalid variables, with the expected values; warn about variables without effect."""
    variables = {name: text for name, text in environment.items() if _SETTING.fullmatch(name) and name not in _OWN}
    if not variables:
        # Importing the settings of all daemons is slow.
        return
    from serving.core.settings.daemons import DAEMONS  # noqa: PLC0415 - as above
    from serving.core.settings.load import removed_variables, wrong_variables  # noqa: PLC0415 - as above

    daemons = [daemon for daemon in DAEMONS if daemon.name.upper() in _DAEMONS]
    for problem in (problem for daemon in daemons for problem in removed_variables(daemon, variables)):
        print_aside(f"warning: {problem}")
    problems = {
        wrong_variable.where: wrong_variable
        for daemon in daemons
        for wrong_variable in wrong_variables(daemon, registry=DAEMONS, environment=variables)
    }
    if problems:
        raise SettingsError(list(problems.values()))


def path_lines(program: Path, python: Path, path: str) -> list[str]:
    """Advice for running this program in another shell; empty if ``serving`` on PATH is this program.

    ``program`` is the path that started this process, ``python`` the interpreter, whose folder also contains the
    program.
    """
    own = program.absolute() if program.name == _NAME else python.with_name(_NAME)
    program_path = shutil.which(_NAME, path=path)
    if program_path is not None and Path(program_path).resolve() == own.resolve():
        return []
    if not own.exists():
        return [f"commands:  {shlex.quote(str(python))} -m serving ..."]
    return [f"commands:  {shlex.quote(str(own))} is not on PATH: export PATH={shlex.quote(str(own.parent))}:$PATH"]


class _Size(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A size in bytes, as 10Mi."""

    name = "SIZE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a size; return bytes."""
        try:
            size = parse_quantity(str(value), "a size such as 10Mi or 500k")
        except InvalidValue as error:
            self.fail(str(error), param, ctx)
        return int(size)


_port_options = adding(
    *(
        click.option(
            f"--{port.name}-port",
            type=click.IntRange(0, PORT_MAX),
            metavar="PORT",
            default=port.number,
            show_default=True,
            help=port.what,
        )
        for port in PORTS
    )
)


@click.command()
@click.option("--state", "state_path", type=click.Path(file_okay=False, path_type=Path), help="State folder.")
@_port_options
@click.option(
    "--tls-cert",
    "tls_certificates",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    help="Certificate (PEM, with its chain) for TLS; repeatable, each with its --tls-key.",
)
@click.option(
    "--tls-key",
    "tls_keys",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    help="Private key (PEM) of the certificate at the same position.",
)
@click.option(
    "--activators",
    "activator_count",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    envvar="SERVING_ACTIVATOR_COUNT",
    help="Number of activator processes, which share the ports. More processes than cores bring no benefit.",
)
@with_public_flags
@with_node_flags
@click.option("-d", "--detach", is_flag=True, help="Run in the background; return once all daemons are ready.")
@click.option(
    "--reload",
    "reloads",
    is_flag=True,
    help="Replace the processes of the running system without failed requests, for example after an upgrade, and "
    "return. Combines with --state only. SIGHUP has the same effect.",
)
@click.option(
    "--isolation",
    type=click.Choice(MODES),
    default=MODES[0],
    show_default=True,
    envvar=ISOLATION_VARIABLE,
    help="Isolation of process pods from this machine and from each other; strict does not start if a layer of isolation is "
    "missing.",
)
@click.option(
    "--log-size",
    type=_Size(),
    default="10Mi",
    show_default=True,
    envvar="SERVING_LOG_SIZE",
    help="Size at which a daemon's log is rotated to NAME.1; 0 disables rotation.",
)
@click.option(
    "--log-files",
    type=click.IntRange(1, 100),
    default=LOG_FILES_MAX,
    show_default=True,
    envvar="SERVING_LOG_FILES",
    help="Number of log files per daemon, including the current one.",
)
@click.option(
    "--systemd",
    is_flag=True,
    help="Run as a systemd service with Type=notify; `serving install-service` writes the unit.",
)
@click.option("--sample", is_flag=True, help="Deploy the sample service hello.")
def up(  # noqa: PLR0913 - options
    *,
    state_path: Path | None,
    tls_certificates: Sequence[Path],
    tls_keys: Sequence[Path],
    activator_count: int,
    isolation: str,
    sample: bool,
    detach: bool,
    **more: Any,  # noqa: ANN401 - ports, flags of nodes, and whether to reload
) -> None:
    """Run the whole system on this machine until interrupted, or with -d until `serving down`."""
    state = StateFolder((state_path or default_state_path()).absolute())
    if more.pop("reloads"):
        _refuse_other_options()
        reload_system(state.path)
        return
    _refuse_wrong_settings()
    limits = {BYTES_VARIABLE: str(more.pop("log_size")), FILES_VARIABLE: str(more.pop("log_files"))}
    systemd = pop_variables(os.environ)
    _check_systemd(systemd, is_wanted=more.pop("systemd"))
    public = _public_flags(more)
    if detach:
        sys.exit(_run_in_background(state, has_sample=sample))
    by_name = public.ports(
        {name.removesuffix("_port").replace("_", "-"): port for name, port in more.items() if name not in NODE_FLAGS}
    )
    has_acme = bool(public.directory_url)
    children = CHILDREN(activator_count, has_node_groups=more["nodes"] is not None, has_acme=has_acme)
    # Metrics of further activators and of node groups use any free port.
    by_name |= {
        name: 0 for child in children for name in child.sockets if name.endswith("-metrics") and name not in by_name
    }
    try:
        environment = _tls_environment(tls_certificates, tls_keys) | nodes_environment(more) | limits
        environment |= public.environment(state)
        environment |= {ISOLATION_VARIABLE: isolation}
        has_certificate = any({**os.environ, **environment}.get(f"{_TLS}{name}") for name in _TLS_SOURCES)
        # First: the process that locks the state folder also uses its ports, and its error explains more.
        state.lock()
        environment |= {GAP_VARIABLE: isolation_gap(isolation, state.path)}
        # Connections fail until a DomainMapping has a certificate.
        sockets = bind(by_name, unheard=() if has_certificate else ("tls",), exposed=public.exposed)
        state.open("https://{}:{}".format(*sockets["api"].getsockname()))
        state.public.write_text(public.domain)
        state.write_ports({name: listener.getsockname()[1] for name, listener in sockets.items()})
        sockets["template"] = state.listen_template()
        inner_port, public_port = (sockets[name].getsockname()[1] for name in ("inner", "public"))
        sockets |= bind_gateway(gateway_of(state.path), inner_port=inner_port, public_port=public_port)
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(USAGE_EXIT)
    except OSError as error:
        raise _in_folder(error, state.path) from None

    ports = {name: listener.getsockname()[1] for name, listener in sockets.items() if name != "template"}
    launch = SupervisorLaunch(
        state=str(state.path),
        lock_fd=state.lock_fd,
        sockets={name: listener.fileno() for name, listener in sockets.items()},
        activator_count=activator_count,
        has_node_groups=more["nodes"] is not None,
        has_acme=has_acme,
        environment=environment,
        systemd=systemd,
        lines=_started_lines(ports, state, activator_count=activator_count, has_certificate=has_certificate),
        sample=_sample_command(state.path) if sample else [],
        ready_fd=int(os.environ.pop(_READY_VARIABLE, "-1")),
    )
    become_supervisor(launch, ["up", *sys.argv[sys.argv.index("up") + 1 :]])


def _in_folder(error: OSError, folder: Path) -> OSError:
    """The error with a path: the error of a write names no file."""
    error.filename = error.filename or str(folder)
    return error


def _started_lines(
    ports: Mapping[str, int], state: StateFolder, *, activator_count: int, has_certificate: bool
) -> list[str]:
    lines = [f"serving is up: services answer at {state.service_url(ports['public'])}"]
    if has_certificate:
        lines.append(f"over TLS: {state.service_url(ports['tls'], scheme='https')}")
    lines.append(f"dashboard: {_dashboard_text(ports['dashboard'], state)}")
    lines += path_lines(Path(sys.argv[0]), Path(sys.executable), os.environ.get("PATH", ""))
    lines += [f"kubectl: export KUBECONFIG={state.kubeconfig}", f"logs:    {state.logs}"]
    if activator_count > 1:
        pages = (str(port) for name, port in ports.items() if re.fullmatch(r"activator(-\d+)?-metrics", name))
        lines.append(f"metrics of the {activator_count} activators: ports {', '.join(pages)}")
    return lines


def _run_in_background(state: StateFolder, *, has_sample: bool) -> int:
    """Start the system, and the sample if requested; return the exit code."""
    # Options are passed on unchanged: only one function parses them.
    arguments = [
        argument for argument in sys.argv[sys.argv.index("up") + 1 :] if argument not in {"-d", "--detach", "--sample"}
    ]
    code = start_in_background(arguments, state.logs)
    if code == 0 and has_sample:
        code = subprocess.run(_sample_command(state.path), check=False).returncode  # noqa: S603 - our own CLI
    return code


def _check_systemd(variables: Mapping[str, str], *, is_wanted: bool) -> None:
    if is_wanted and not SystemdNotifier(variables).is_on:
        fail_usage("--systemd needs a service of systemd with Type=notify; `serving install-service` writes one")


def _refuse_wrong_settings() -> None:
    try:
        check_environment(os.environ)
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(USAGE_EXIT)


def _public_flags(options: dict[str, Any]) -> PublicFlags:
    """Remove the flags of public hosts from the options; exits if one is wrong."""
    try:
        return PublicFlags.from_options(options)
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(USAGE_EXIT)


def _refuse_other_options() -> None:
    """Reject other options with ``--reload``, because a running system keeps its options."""
    context = click.get_current_context()
    typed = [
        param.opts[0]
        for param in context.command.params
        if param.name not in {"reloads", "state_path"}
        and context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    ]
    if typed:
        fail_usage(
            f"--reload takes --state only, not {', '.join(typed)}; for other options: `serving down`, `serving up`"
        )


def _tls_environment(certificates: Sequence[Path], keys: Sequence[Path]) -> dict[str, str]:
    """The activator's settings for these certificates. The first is the default. All must be valid.

    Raises:
        SettingsError: with a problem for each invalid certificate.
    """
    if len(certificates) != len(keys):
        what = f"{len(certificates)} of --tls-cert and {len(keys)} of --tls-key"
        raise SettingsError([Problem(where="--tls-key", what=what, expected="one key for each certificate")])
    if not certificates:
        return {}
    from serving.net.proxy.tls.certificate import load_certificate  # noqa: PLC0415 - OpenSSL, where there is TLS only
    from serving.net.proxy.tls.keeper import CertificateFiles  # noqa: PLC0415 - as above

    paths = [
        (str(certificate.absolute()), str(key.absolute())) for certificate, key in zip(certificates, keys, strict=True)
    ]
    problems = []
    for name, pair in CertificateFiles(pairs=paths).read().items():
        try:
            if isinstance(pair, InvalidCertificate):
                raise pair
            load_certificate(name, pair)
        except InvalidCertificate as error:
            expected = "a certificate with its key, as PEM"
            problems.append(Problem(where=error.where, what=error.reason, expected=expected))
    if problems:
        raise SettingsError(problems)
    return {
        f"{_TLS}CERTIFICATE_FILES": ",".join(certificate for certificate, _ in paths),
        f"{_TLS}KEY_FILES": ",".join(key for _, key in paths),
        f"{_TLS}DEFAULT_CERTIFICATE": os.environ.get(f"{_TLS}DEFAULT_CERTIFICATE") or paths[0][0],
    }


def _dashboard_text(port: int, state: StateFolder) -> str:
    """The dashboard's address. On a terminal it includes the token; elsewhere not, because a log would store it."""
    page = f"http://127.0.0.1:{port}"
    if sys.stdout.isatty():
        return f"{page}/?token={state.query_token.read_text()}"
    return f"{page}, opened by the link of `serving dashboard`"


def _sample_command(state_path: Path) -> list[str]:
    app = Path(__file__).parents[2] / "samples" / "hello.py"
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(app))}"
    window = f"{WINDOW_ANNOTATION}=10s"
    arguments = ["deploy", "hello", str(app.parent), "--command", command, "--concurrency", "10", "--annotate", window]
    return [sys.executable, "-m", "serving", *arguments, "--state", str(state_path)]


# Seven daemons with one second each, and a minute for a daemon that does not start.
_TIMEOUT_S = 180.0
_POLL_S = 0.05


def reload_system(state_path: Path) -> None:
    """Reload the system of a state folder, and print each replacement; exits with 1 on failure."""
    state = StateFolder(state_path)
    pid = state.holder()
    if pid is None:
        fail(f"serving does not run with the state folder {state.path}; `serving up` starts it")
    refuse_newer_state(state)
    # A running reload started from an earlier state.
    awaited_count = read_reload(state.reload)["begun_count"] + 1
    try:
        os.kill(pid, signal.SIGHUP)
    except PermissionError:
        fail(f"process {pid} belongs to another user; run `serving up --reload` as that user")
    except ProcessLookupError:
        fail(f"process {pid}, which {state.path} names, cannot be seen from here; is it in a container?")
    with Progress("waiting for the new processes"):
        error = _until_reloaded(state, pid, awaited_count)
    if error is not None:
        fail(f"{error}; processes that were not replaced go on")
    click.echo("serving is reloaded; old activators end with their last request")


def refuse_newer_state(state: StateFolder) -> None:
    """Raise ``ServingError`` if a file has a newer format, because replaced processes could not read it."""
    refuse_newer_journal(state.journal)
    for pod, note in ProcessRecords(state.processes).read()[1].items():
        refuse_newer(f"the note about pod {pod}", note.get("version", 1), known=POD_RECORDS, action=NEWER_PODS)


def _until_reloaded(state: StateFolder, pid: int, awaited_count: int) -> str | None:
    """Print replacements until the requested reload has ended; return its error, None after success."""
    deadline_s, shown_count = time.monotonic() + _TIMEOUT_S, 0
    while True:
        reload_state = read_reload(state.reload)
        if reload_state["begun_count"] >= awaited_count:
            for line in reload_state["replaced"][shown_count:]:
                click.echo(line)
            shown_count = len(reload_state["replaced"])
        if reload_state["ended_count"] >= awaited_count:
            return reload_state["error"]
        if state.holder() != pid:
            fail("serving has ended; see its output")
        if time.monotonic() >= deadline_s:
            fail(f"not reloaded after {_TIMEOUT_S:g} s; see the logs in {state.logs}")
        time.sleep(_POLL_S)
