"""Runs one container of a pod: starts its process, probes it, and restarts it with growing pauses.

App and queue-proxy differ only in their commands. Each change is reported as a ``ContainerState``. A process started by
an earlier control process is adopted.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from serving.core.model.errors import NotFound
from serving.core.model.event import UNHEALTHY_REASON
from serving.core.traffic.backoff import backoff_s
from serving.home.kubelet.podsleep import AppSleep
from serving.home.kubelet.stdio import Stdio
from serving.home.pods.locations import listening_ports
from serving.home.pods.podfolder import rotate_previous, size_of, tail
from serving.home.pods.podplan import ContainerState
from serving.home.pods.probeplan import ProbeKind, ProbePlan, ProbeState, ProbeVerdict, after_outcome, probe_failure
from serving.home.pods.unready import ObservedContainer, with_log
from serving.home.processes.orders import ReadinessChanged, StartProcess
from serving.home.processes.processruntime import ProcessRuntime, TemplateProcess
from serving.net.aio.clock import micro_stamp, now_s, wall_s
from serving.net.aio.periodic import wait_for
from serving.net.aio.supervise import supervise
from serving.queueproxy.io.applistener import ListenerCheck
from serving.queueproxy.io.processes import members, read_processes
from serving.queueproxy.io.readiness import attempt
from serving.queueproxy.podspec import Address, Probe

# Kubernetes' exit code of a process that ended by a signal: 128 plus the signal's number.
_SIGNAL_EXIT = 128
_KILLED_BY_US_GRACE_S = 5.0
# Starts slower than the queue-proxy's probes, which detect a fast start first.
_STARTUP_PAUSE_FIRST_S = 0.02
# Greatest age of an explanation, in seconds: reading hundreds of processes takes a tenth of a second.
_PORTS_AGE_MAX_S = 1.0
_SPARED = frozenset({0, 1})
_LISTEN_PAUSE_FIRST_S, _LISTEN_PAUSE_FACTOR, _LISTEN_PAUSE_MAX_S = 0.01, 1.5, 0.1


def beside(start: StartProcess, *, name: str, command: tuple[str, ...], log: str) -> StartProcess:
    """The order that runs a command in a container's namespaces and cgroups, with the container's user and environment.

    ``name`` is the name of the new process in its pod. Raises ``OSError`` if the container's folder is gone.
    """
    # A command has neither the container's input nor its readiness.
    start = msgspec.structs.replace(start, stdin="", keeps_stdin=False, is_own_proxy=False)
    if start.launch is None:
        return msgspec.structs.replace(start, name=name, arguments=command, log=log, is_exec=True)
    folder = Path(start.launch.pid_file).parent
    pid_file, process = str(folder / f"{name}.pid"), folder / f"{name}.json"
    like = msgspec.json.decode((folder / "config.json").read_bytes())["process"]
    process.write_bytes(msgspec.json.encode({**like, "args": command}))
    *options, _run, _detach, _option, _file, _bundle, _folder, container = start.arguments
    arguments = (*options, "exec", "--detach", "--pid-file", pid_file, "--process", str(process), container)
    launch = msgspec.structs.replace(start.launch, pid_file=pid_file, root=None)
    return msgspec.structs.replace(start, name=name, arguments=arguments, log=log, launch=launch, is_exec=True)


class RestartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The restart back-off of a container, in seconds.

    After an uptime of ``sound_s`` a restart is immediate; in Kubernetes it must be 600 s. Otherwise the pause begins at
    ``pause_first_s`` and doubles up to ``pause_max_s``.
    """

    pause_first_s: float = 1.0
    """Pause after the second consecutive end, in seconds; it doubles each time.

    Default: ours, 1 s; the kubelet waits 10 s.
    """

    pause_max_s: float = 60.0
    """Longest pause in seconds. Default: ours, 60 s; the kubelet's is 300 s."""

    sound_s: float = 30.0
    """Uptime in seconds after which a restart is immediate. The kubelet requires 600 s."""


class RestartPauses:
    """Computes the pauses before restarts of a failing container."""

    def __init__(self, settings: RestartSettings, end_count: int = 0) -> None:
        self._settings = settings
        self.end_count = end_count

    def after(self, lived_s: float) -> float:
        """Count an end after an uptime of ``lived_s``; return the pause before the restart, in seconds.

        With the defaults, repeated ends after 1 s give 0, 1, 2, 4, ..., 32, 60, 60; an end after 30 s or more gives 0.
        """
        settings = self._settings
        self.end_count = 1 if lived_s >= settings.sound_s else self.end_count + 1
        if self.end_count == 1:
            return 0.0
        return backoff_s(self.end_count - 1, first_s=settings.pause_first_s, max_s=settings.pause_max_s)


_RESTARTS = RestartSettings()


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A container to run: its start order, callbacks for state and readiness, and its probes.

    ``address`` is the probed address. The socket there must belong to a process of the container or to the user id
    ``app_user``, which is 0 if the pod has no user of its own; None disables this check. ``listening`` is the probe of
    an app after a restart; at the first start the queue-proxy probes the app. ``is_http2`` sends this probe by HTTP/2,
    as the queue-proxy does. The kubelet's other probes use HTTP/1.1, as in a cluster. ``restart_policy`` is the pod's.
    ``exit_reason`` returns why the container ended, or "". ``first`` is the state at the beginning, which an earlier
    control process may have left.
    """

    start: StartProcess
    on_state: Callable[[ContainerState], None]
    on_ready: Callable[[ReadinessChanged], None] | None = None
    on_warning: Callable[[str, str], None]
    probes: tuple[ProbePlan, ...] = ()
    listening: Probe | None = None
    is_http2: bool = False
    exit_reason: Callable[[], str] | None = None
    restart_policy: str = "Always"
    address: Address = ("127.0.0.1", 0)
    app_user: int | None = None
    first: ContainerState = ContainerState()


class ContainerKeeper:
    """Runs one container until ``stop`` is set. ``process`` is the current process, None between two runs."""

    def __init__(
        self,
        runtime: ProcessRuntime,
        spec: ContainerSpec,
        stop: asyncio.Event,
        *,
        niceness: int = 0,
        sleep: AppSleep | None = None,
    ) -> None:
        # Only the first process: restoring the weight does not observe the end of later starts.
        self._niceness = niceness
        self._runtime = runtime
        self._spec = spec
        self._stop = stop
        self._sleep = sleep or AppSleep()
        # Why the process is being ended, as reason and message.
        self._exit_reason = self._exit_message = ""
        self.log = Path(spec.start.log)
        self._log_bytes = 0
        self._is_listening = True
        self._probe_log = self.log.with_name(f"{spec.start.name}.probe.log")
        # The last failure of each exec probe; "" after a success.
        self._probe_failures: dict[ProbeKind, str] = {}
        self.process: TemplateProcess | None = None
        self.state = spec.first
        self.verdicts: dict[ProbeKind, ProbeVerdict] = {probe.kind: ProbeVerdict.UNKNOWN for probe in spec.probes}

    def __repr__(self) -> str:
        return f"ContainerKeeper({self._spec.start.pod}/{self._spec.start.name}, {self.process}, {self.state.restart_count} restarts)"

    @property
    def is_fine(self) -> bool:
        """Whether the container runs and listens, and its startup and exec readiness probes, if any, have passed."""
        verdicts = (self.verdicts.get(kind, ProbeVerdict.PASSED) for kind in (ProbeKind.STARTUP, ProbeKind.READINESS))
        return (
            self.state.is_running and self._is_listening and all(verdict is ProbeVerdict.PASSED for verdict in verdicts)
        )

    def adopt(self) -> None:
        """Adopt the container's process if an earlier control process started it and it is still running."""
        start = self._spec.start
        self.process = self._runtime.adopt(
            start.pod, start.name, on_ready=self._spec.on_ready, on_warning=self._spec.on_warning
        )

    async def run(self) -> None:
        """Run the container until ``stop`` is set. The caller ends the last process."""
        start, pauses = self._spec.start, RestartPauses(_RESTARTS)
        while True:
            began_s, is_own = now_s(), self.process is None
            if self.process is None:
                if self._stop.is_set():
                    # The pod was deleted before this task began: a process started now would never end.
                    return
                if self.state.restart_count:
                    rotate_previous(self.log)
                self._log_bytes = size_of(self.log)
                nice = msgspec.structs.replace(start, niceness=self._niceness)
                self._niceness = 0
                self.process = self._runtime.start(nice, on_ready=self._spec.on_ready, on_warning=self._spec.on_warning)
            try:
                await self.process.started
            except OSError as error:
                self.process = None
                self._report(
                    msgspec.structs.replace(self.state, waiting_reason="RunContainerError", waiting_message=str(error))
                )
                # The command may be installed meanwhile, so it is retried soon.
            else:
                await self._run_one(self.process, micro_stamp(wall_s()) if is_own else self.state.started_at)
            if self._stop.is_set() or self.state.is_over:
                return
            pause_s = pauses.after(now_s() - began_s)
            if pause_s:
                self._report(_waiting(self.state, pause_s))
            if await wait_for(self._stop, until_s=now_s() + pause_s):
                return

    async def _run_one(self, process: TemplateProcess, started_at: str) -> None:
        self.verdicts = dict.fromkeys(self.verdicts, ProbeVerdict.UNKNOWN)
        self._report(msgspec.structs.replace(self.state, is_running=True, started_at=started_at))
        async with supervise() as group:
            probing = [group.start(self._probe(), name="probes"), group.start(self._listen_again(), name="listening")]
            exit_code = await process.ended
            for task in probing:
                task.cancel()
        self.process = None
        # The queue-proxy probes a ready app too rarely to detect the restart.
        self._is_listening = self._spec.listening is None
        lines = await asyncio.to_thread(tail, self.log, after=self._log_bytes)
        reason = (self._spec.exit_reason() if self._spec.exit_reason is not None else "") or self._exit_reason
        if reason == UNHEALTHY_REASON:
            lines = with_log(self._exit_message, lines)
        policy = self._spec.restart_policy
        is_over = policy == "Never" or (policy == "OnFailure" and exit_code == 0)
        self._report(
            ContainerState(
                is_over=is_over,
                restart_count=self.state.restart_count + (not is_over),
                exit_code=exit_code if exit_code >= 0 else _SIGNAL_EXIT - exit_code,
                exit_reason=reason,
                last_lines=lines,
            )
        )
        self._exit_reason = self._exit_message = ""

    @property
    def _listener_check(self) -> ListenerCheck | None:
        # Not stored: it would refer to this keeper, whose memory is released without garbage collection.
        return None if self._spec.app_user is None else ListenerCheck(self._spec.app_user, self._processes)

    def _processes(self) -> Iterator[int]:
        """The container's processes: first the main process, which usually listens, then its descendants."""
        process = self.process
        if process is not None and process.pid:
            yield process.pid
            yield from members(read_processes(), [process.pid], spared=_SPARED)

    def _report(self, state: ContainerState) -> None:
        self.state = state
        if not self._stop.is_set():
            self._spec.on_state(state)

    def kill(self, reason: str) -> None:
        """Send SIGKILL; ``reason`` is reported in the container's status."""
        if self.process is not None:
            self._exit_reason = reason
            self.process.send(signal.SIGKILL)

    async def _listen_again(self) -> None:
        """Probe a restarted app until it accepts connections."""
        pause_s = _LISTEN_PAUSE_FIRST_S
        while not self._is_listening and self._spec.listening is not None:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * _LISTEN_PAUSE_FACTOR, _LISTEN_PAUSE_MAX_S)
            if await attempt(
                self._spec.listening,
                self._spec.address,
                is_http2=self._spec.is_http2,
                network=self._spec.start.network,
                check=self._listener_check,
            ):
                self._is_listening = True
                self._spec.on_state(self.state)

    async def _probe(self) -> None:
        """Run all probes: the startup probe alone first, then the others in parallel."""
        plans = {plan.kind: plan for plan in self._spec.probes}
        first = plans.pop(ProbeKind.STARTUP, None)
        if first is not None and not await self._probe_repeatedly(first):
            return
        async with supervise() as group:
            for plan in plans.values():
                group.start(self._probe_repeatedly(plan), name=f"{plan.kind} probe")

    async def _probe_repeatedly(self, plan: ProbePlan) -> bool:
        """Run one probe periodically.

        Return True once a startup probe has passed, and False once the container was killed. A startup or liveness
        probe that fails too often kills the container. A readiness probe runs until cancelled.
        """
        state = ProbeState()
        await asyncio.sleep(plan.initial_delay_s)
        if plan.kind is not ProbeKind.LIVENESS:
            await self._until_it_may_pass(plan)
        while True:
            began_s = now_s()
            failure = await self._sleep.awake_failure(lambda: self._failure(plan))
            before, state = state, after_outcome(state, plan, ok=not failure)
            if state.verdict is not before.verdict:
                self.verdicts[plan.kind] = state.verdict
                self._spec.on_state(self.state)
                if state.verdict is ProbeVerdict.PASSED and plan.kind is ProbeKind.STARTUP:
                    return True
                if state.verdict is ProbeVerdict.FAILED and plan.kind is not ProbeKind.READINESS:
                    message = f"{plan.kind} of {self._spec.start.name} failed {_times(state.failures)}: {failure}"
                    self._spec.on_warning(UNHEALTHY_REASON, message)
                    self._exit_reason = UNHEALTHY_REASON
                    self._exit_message = message
                    assert self.process is not None
                    await self.process.end(grace_s=_KILLED_BY_US_GRACE_S)
                    return False
            await asyncio.sleep(max(0.0, plan.period_s - (now_s() - began_s)))

    async def _until_it_may_pass(self, plan: ProbePlan) -> None:
        """During the first period, repeat a failing probe with short pauses. Failures in this time do not count."""
        until_s, failure_count = now_s() + plan.period_s, 0
        while await self._sleep.awake_failure(lambda: self._failure(plan)):
            failure_count += 1
            pause_s = backoff_s(failure_count, first_s=_STARTUP_PAUSE_FIRST_S, max_s=plan.period_s)
            if now_s() + pause_s >= until_s:
                return
            await asyncio.sleep(pause_s)

    async def _failure(self, plan: ProbePlan) -> str:
        """Run a probe once; record and return its failure, "" after a success."""
        failure = self._probe_failures[plan.kind] = await (self._executed if plan.command else self._requested)(plan)
        return failure

    async def _requested(self, plan: ProbePlan) -> str:
        host, port = self._spec.address
        app = (host, plan.port or port)
        check = None if plan.port else self._listener_check
        if check is not None and (foreign := check.foreign_at(*app)):
            return foreign
        if plan.probe.path is not None:
            failure = await probe_failure(plan.probe, app, network=self._spec.start.network)
            return failure and f"{plan.label}: {failure}"
        is_open = await attempt(plan.probe, app, network=self._spec.start.network, check=check)
        return "" if is_open else f"no connection to port {app[1]}"

    async def _executed(self, plan: ProbePlan) -> str:
        """Run a probe's command as the app's user; return its failure, "" if it exited with 0 in time."""
        start = self._spec.start
        log_bytes = size_of(self._probe_log)
        name = f"{start.name}.{plan.kind}"
        process = self._runtime.start(beside(start, name=name, command=plan.command, log=str(self._probe_log)))
        try:
            async with asyncio.timeout(plan.probe.timeout_s):
                await process.started
                exit_code = await asyncio.shield(process.ended)
        except TimeoutError:
            # The next probe needs its name, so it must have ended first.
            await process.end(grace_s=0)
            return f"no result within {plan.probe.timeout_s:g} s (timeoutSeconds)"
        except OSError as error:
            return str(error)
        finally:
            process.send(signal.SIGKILL)
        if exit_code == 0:
            return ""
        lines = await asyncio.to_thread(tail, self._probe_log, after=log_bytes)
        return f"exit code {exit_code}" + (f": {lines}" if lines else "")

    def execute(self, command: tuple[str, ...], stdio: Stdio) -> TemplateProcess:
        """Run a command in the container, with separate streams. Raises ``NotFound`` if the container does not run."""
        start = self._spec.start
        self.running_process()
        name = f"{start.name}.exec-{secrets.token_hex(4)}"
        order = beside(start, name=name, command=command, log=os.devnull)
        return self._runtime.start(
            msgspec.structs.replace(
                order,
                stdin=stdio.stdin,
                stdout=stdio.stdout,
                stderr=stdio.stderr,
                has_terminal=stdio.has_terminal,
                # As terminal programs expect; the app's environment need not have it.
                environment={**({"TERM": "xterm"} if stdio.has_terminal else {}), **order.environment},
            )
        )

    @property
    def has_process(self) -> bool:
        """Whether the container's process is running."""
        return self.process is not None and bool(self.process.pid) and not self.process.ended.done()

    def running_process(self) -> TemplateProcess:
        """The container's process. Raises ``NotFound`` while it is not running."""
        if self.process is None or not self.has_process:
            raise NotFound(f"container {self._spec.start.name} of the pod does not run")
        return self.process

    async def observe(self) -> ObservedContainer | None:
        """Observe why a running container may be unready; None if it is down or has no port or probe."""
        process, listening_probe = self.process, self._spec.listening
        if process is None or not self.has_process:
            return None
        name = self._spec.start.name
        for kind in (ProbeKind.STARTUP, ProbeKind.READINESS):
            plan = next((plan for plan in self._spec.probes if plan.kind is kind), None)
            failure = self._probe_failures.get(kind)
            if plan is not None and failure and (plan.command or listening_probe is None):
                failure = failure.removeprefix(f"{plan.label}: ")
                return ObservedContainer(container=name, port=0, probe=plan.label, probe_failure=failure)
        if listening_probe is None:
            return None
        ports = await asyncio.to_thread(listening_ports, process.pid, age_max_s=_PORTS_AGE_MAX_S)
        port = self._spec.address[1]
        start = self._spec.start
        observed = ObservedContainer(
            container=name,
            port=port,
            ports=ports,
            foreign=check.foreign_at(*self._spec.address) if (check := self._listener_check) else "",
            host=self._spec.address[0] if start.is_own_proxy else "",
            port_option="" if not start.network else "--fixed-port" if start.launch is None else "--port",
        )
        if listening_probe.path is None or port not in ports or self._spec.is_http2:
            return observed
        failure = await probe_failure(listening_probe, self._spec.address, network=self._spec.start.network)
        return msgspec.structs.replace(observed, probe=f"GET {listening_probe.path}", probe_failure=failure)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _waiting(state: ContainerState, pause_s: float) -> ContainerState:
    if state.waiting_reason == "RunContainerError":
        return state
    message = f"ended with exit code {state.exit_code}; starts again in {pause_s:g} s"
    return msgspec.structs.replace(state, waiting_reason="CrashLoopBackOff", waiting_message=message)
