"""One process of a pod, kept running: started through the template, started again when it ends, probed meanwhile.

An app and a queue-proxy are kept alike; they differ in what is started. What becomes of it is told as a ``Life``. A
process that ran already when this control process began is taken over.
"""

import asyncio
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from serving.aio.clock import now_s
from serving.aio.periodic import wait_for
from serving.local.listening import listening_ports
from serving.local.orders import StartProcess
from serving.local.podfolder import keep_previous, size_of, tail
from serving.local.podplan import ContainerState
from serving.local.probeplan import ProbeKind, ProbePlan, ProbeState, ProbeVerdict, after_outcome
from serving.local.probing import probe_failure
from serving.local.processruntime import ProcessRuntime, TemplateProcess
from serving.local.restarts import RestartSettings, pause_after
from serving.local.unready import ObservedContainer
from serving.queueproxy.io.app_probe import attempt
from serving.queueproxy.podspec import Probe

__all__ = ["ContainerKeeper", "ContainerSpec"]

# What Kubernetes makes of a process that a signal ended.
_SIGNAL_EXIT = 128
_RESTARTS = RestartSettings()
_KILLED_BY_US_GRACE_S = 5.0
# As a queue-proxy asks an app that is not ready yet, but later: at the first start it is quick anyway.
_STARTUP_PAUSE_FIRST_S = 0.02
_LISTEN_PAUSE_FIRST_S, _LISTEN_PAUSE_FACTOR, _LISTEN_PAUSE_MAX_S = 0.01, 1.5, 0.1


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept running: the order that starts it, who hears of its life and of its readiness, and its probes.

    ``port`` is where it is probed on 127.0.0.1. ``listening`` is how an app is asked that was started again: at its first
    start the queue-proxy asks. ``is_http2`` says that it is asked so by HTTP/2, as the queue-proxy does; the kubelet's own
    probes are HTTP/1.1's, as in a cluster.
    """

    start: StartProcess
    on_life: Callable[[ContainerState], None]
    on_ready: Callable[[bool], None] | None = None
    on_warning: Callable[[str, str], None]
    probes: tuple[ProbePlan, ...] = ()
    listening: Probe | None = None
    is_http2: bool = False
    port: int = 0
    first: ContainerState = ContainerState()


class ContainerKeeper:
    """Keeps one process until ``stop`` is set. ``process`` is the present one, None between two."""

    def __init__(self, host: ProcessRuntime, kept: ContainerSpec, stop: asyncio.Event) -> None:
        self._host, self._kept, self._stop = host, kept, stop
        self._exit_reason = ""
        self.log = Path(kept.start.log)
        self._log_bytes = 0
        self._is_listening = True
        self._probe_log = self.log.with_name(f"{kept.start.name}.probe.log")
        # By probe: how it failed last, "" after a success.
        self._probe_failures: dict[ProbeKind, str] = {}
        self.process: TemplateProcess | None = None
        self.life = kept.first
        self.verdicts: dict[ProbeKind, ProbeVerdict] = {probe.kind: ProbeVerdict.UNKNOWN for probe in kept.probes}

    def __repr__(self) -> str:
        return f"ContainerKeeper({self._kept.start.pod}/{self._kept.start.name}, {self.process}, {self.life.restart_count} restarts)"

    @property
    def is_fine(self) -> bool:
        """Whether it runs and listens, and its startup and exec readiness probes, if it has any, have passed."""
        asked = (self.verdicts.get(kind, ProbeVerdict.PASSED) for kind in (ProbeKind.STARTUP, ProbeKind.READINESS))
        return self.life.is_running and self._is_listening and all(verdict is ProbeVerdict.PASSED for verdict in asked)

    def take_over(self) -> None:
        """Adopt the process that an earlier control process started, if the template still has it."""
        start = self._kept.start
        self.process = self._host.take_over(start.pod, start.name, on_ready=self._kept.on_ready)

    async def run(self) -> None:
        """Keep it running until ``stop`` is set. The caller ends the process that runs then."""
        start, pause_s = self._kept.start, None
        while True:
            began_s = now_s()
            if self.process is None:
                if self._stop.is_set():
                    # The pod was deleted before this task began: a process started now would never be ended.
                    return
                if self.life.restart_count:
                    keep_previous(self.log)
                self._log_bytes = size_of(self.log)
                self.process = self._host.start(start, on_ready=self._kept.on_ready)
            try:
                await self.process.started
            except OSError as error:
                self.process = None
                self._told(
                    msgspec.structs.replace(self.life, waiting_reason="RunContainerError", waiting_message=str(error))
                )
                # It may be installed meanwhile; nobody is to wait a minute for that.
            else:
                await self._run_one(self.process)
            if self._stop.is_set():
                return
            pause_s = pause_after(pause_s, lived_s=now_s() - began_s, settings=_RESTARTS)
            if pause_s:
                self._told(_waiting(self.life, pause_s))
            if await wait_for(self._stop, until_s=now_s() + pause_s):
                return

    async def _run_one(self, process: TemplateProcess) -> None:
        self._told(msgspec.structs.replace(self.life, is_running=True))
        async with asyncio.TaskGroup() as group:
            probing = [group.create_task(self._probe()), group.create_task(self._listen_again())]
            exit_code = await process.ended
            for task in probing:
                task.cancel()
        self.process = None
        # The queue-proxy asks a ready app so rarely that it would not notice.
        self._is_listening = self._kept.listening is None
        lines = await asyncio.to_thread(tail, self.log, after=self._log_bytes)
        self._told(
            ContainerState(
                restart_count=self.life.restart_count + 1,
                exit_code=exit_code if exit_code >= 0 else _SIGNAL_EXIT - exit_code,
                exit_reason=self._exit_reason,
                last_lines=lines,
            )
        )
        self._exit_reason = ""

    def _told(self, life: ContainerState) -> None:
        self.life = life
        if not self._stop.is_set():
            self._kept.on_life(life)

    def kill(self, reason: str) -> None:
        """SIGKILL, with a reason that its status shall tell."""
        if self.process is not None:
            self._exit_reason = reason
            self.process.send(signal.SIGKILL)

    async def _listen_again(self) -> None:
        """Ask an app that was started again until it takes connections."""
        pause_s = _LISTEN_PAUSE_FIRST_S
        while not self._is_listening and self._kept.listening is not None:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * _LISTEN_PAUSE_FACTOR, _LISTEN_PAUSE_MAX_S)
            app = ("127.0.0.1", self._kept.port)
            if await attempt(self._kept.listening, app, is_http2=self._kept.is_http2):
                self._is_listening = True
                self._kept.on_life(self.life)

    async def _probe(self) -> None:
        """Ask all probes in turn: startup first, alone; then the others side by side."""
        self.verdicts = dict.fromkeys(self.verdicts, ProbeVerdict.UNKNOWN)
        plans = {plan.kind: plan for plan in self._kept.probes}
        first = plans.pop(ProbeKind.STARTUP, None)
        if first is not None and not await self._asked(first):
            return
        async with asyncio.TaskGroup() as group:
            for plan in plans.values():
                group.create_task(self._asked(plan))

    async def _asked(self, plan: ProbePlan) -> bool:
        """Ask again and again. A startup probe ends with True when it passes; startup and liveness kill when they fail."""
        state = ProbeState()
        await asyncio.sleep(plan.initial_delay_s)
        if plan.kind is not ProbeKind.LIVENESS:
            await self._until_it_may_pass(plan)
        while True:
            began_s = now_s()
            ok = await self._outcome(plan)
            before, state = state, after_outcome(state, plan, ok=ok)
            if state.verdict is not before.verdict:
                self.verdicts[plan.kind] = state.verdict
                self._kept.on_life(self.life)
                if state.verdict is ProbeVerdict.PASSED and plan.kind is ProbeKind.STARTUP:
                    return True
                if state.verdict is ProbeVerdict.FAILED and plan.kind is not ProbeKind.READINESS:
                    why = self._probe_failures.get(plan.kind, "")
                    message = f"{plan.kind} of {self._kept.start.name} failed {state.failures} times"
                    self._kept.on_warning("Unhealthy", f"{message}: {why}" if why else message)
                    self._exit_reason = "Error"
                    assert self.process is not None
                    await self.process.end(grace_s=_KILLED_BY_US_GRACE_S)
                    return False
            await asyncio.sleep(max(0.0, plan.period_s - (now_s() - began_s)))

    async def _until_it_may_pass(self, plan: ProbePlan) -> None:
        """Ask more often in the first period, so that an app is not late by a whole one; failures do not count yet."""
        until_s, pause_s = now_s() + plan.period_s, _STARTUP_PAUSE_FIRST_S
        while not await self._outcome(plan) and now_s() + pause_s < until_s:
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def _outcome(self, plan: ProbePlan) -> bool:
        if not plan.command:
            return await attempt(plan.probe, ("127.0.0.1", plan.port or self._kept.port))
        failure = self._probe_failures[plan.kind] = await self._executed(plan)
        return not failure

    async def _executed(self, plan: ProbePlan) -> str:
        """Run a command as the app is run; why it failed, "" if it ended with 0 in time."""
        start = self._kept.start
        log_bytes = size_of(self._probe_log)
        process = self._host.start(
            msgspec.structs.replace(
                start, name=f"{start.name}.{plan.kind}", arguments=plan.command, log=str(self._probe_log)
            )
        )
        try:
            async with asyncio.timeout(plan.probe.timeout_s):
                await process.started
                exit_code = await asyncio.shield(process.ended)
        except TimeoutError:
            # Until it has ended, the next probe cannot start under its name.
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

    async def observe(self) -> ObservedContainer | None:
        """What may keep a container that runs from being ready; None if it does not run or nothing is asked of it."""
        process, asked = self.process, self._kept.listening
        if process is None or not process.pid or process.ended.done():
            return None
        name = self._kept.start.name
        for kind in (ProbeKind.STARTUP, ProbeKind.READINESS):
            plan = next((one for one in self._kept.probes if one.kind is kind), None)
            if plan is not None and plan.command and self._probe_failures.get(kind):
                failure, probe = self._probe_failures[kind], f"exec {shlex.join(plan.command)}"
                return ObservedContainer(container=name, port=0, probe=probe, probe_failure=failure)
        if asked is None:
            return None
        ports = await asyncio.to_thread(listening_ports, process.pid)
        observed = ObservedContainer(container=name, port=self._kept.port, ports=ports)
        if asked.path is None or self._kept.port not in ports or self._kept.is_http2:
            return observed
        failure = await probe_failure(asked, ("127.0.0.1", self._kept.port))
        return msgspec.structs.replace(observed, probe=f"GET {asked.path}", probe_failure=failure)


def _waiting(life: ContainerState, pause_s: float) -> ContainerState:
    if life.waiting_reason == "RunContainerError":
        return life
    message = f"ended with exit code {life.exit_code}; starts again in {pause_s:g} s"
    return msgspec.structs.replace(life, waiting_reason="CrashLoopBackOff", waiting_message=message)
