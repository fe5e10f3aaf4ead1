"""The contract of a pod for every runtime: processes, and containers of crun or runc, with and without root.

Each test applies to every runtime. If a runtime cannot enforce a field of the manifest, an Event must report it.
"""

import asyncio
import contextlib
import itertools
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from serving.core.model.objects import Object, nested
from serving.home.apiserver.channels import STDERR, STDOUT
from serving.home.apiserver.logoptions import LogOptions
from serving.home.apiserver.podstreams import ExecOptions
from serving.home.containers.network import remove_leftovers
from serving.home.containers.podsandbox import container_host
from serving.home.controllers.workloads import is_ready
from serving.home.kubelet.podstreams import FilePodLogs, LocalPodStreams
from serving.home.pods.podfolder import previous_of
from serving.home.processes.processruntime import TemplateProcess
from serving.net.cluster.kinds import CONFIG_MAP, EVENT, POD, SECRET
from serving.queueproxy.io.podhandler import OUT_OF_MEMORY
from tests.eventually import until
from tests.integration.image_stage import app_image, needs_containers
from tests.integration.local_stage import Machine, controlled, manifest, secret_line, status_of, template_process
from tests.integration.pod_kinds import CONTAINERS, PROCESS, Kind

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

IMAGE = "test.local/web:1"
_numbers = itertools.count()


class Stage:
    """A kubelet with one runtime, and the pod of one test."""

    def __init__(self, machine: Machine, kind: Kind) -> None:
        self.machine, self.kind = machine, kind
        self.logs = FilePodLogs(machine.state.logs / "pods")
        self.streams = LocalPodStreams(machine.kubelet, self.logs)
        self.name = f"p{next(_numbers)}"

    async def start(self, script: str, **container: Any) -> None:  # noqa: ANN401 - fields of the API
        """Create a pod whose container runs a shell script."""
        await self.start_words("/bin/sh", "-c", script, **container)

    async def start_words(self, *command: str, **container: Any) -> None:  # noqa: ANN401 - fields of the API
        """Create a pod whose container runs a command."""
        await self.machine.start(self.pod(*command, **container))

    def pod(self, *command: str, **container: Any) -> Object:  # noqa: ANN401 - fields of the API
        """The manifest of the pod; ``pod_spec`` adds fields to its spec."""
        spec = container.pop("pod_spec", {})
        resource = manifest(self.name, **container)
        resource["metadata"]["annotations"] = {"serving.dev/command": ""} if self.kind is PROCESS else {}
        resource["spec"]["containers"][0].update(image=IMAGE, command=list(command))
        resource["spec"].update(spec)
        return resource

    async def until(self, holds: Callable[[Object], object]) -> Object:
        return await self.machine.until(holds, self.name)

    async def ready(self) -> Object:
        return await self.machine.ready(self.name)

    async def ended(self) -> Object:
        """Wait until the container has terminated; return the state of its last termination."""
        pod = await self.until(lambda resource: "lastState" in status_of(resource))
        terminated: Object = status_of(pod)["lastState"]["terminated"]
        return terminated

    async def output_of(self, script: str, **container: Any) -> str:  # noqa: ANN401 - fields of the API
        """Output of a pod that runs a script once."""
        await self.start(script, **container)
        return await self.first_log()

    async def first_log(self) -> str:
        """The log of the container's first run."""
        log = previous_of(self.machine.state.logs / "pods" / "default" / self.name / "user-container.log")
        await until(log.exists)
        options = LogOptions(container="user-container", previous=True)
        return b"".join([data async for data in self.logs.read("default", self.name, options)]).decode()

    def log(self) -> str:
        """The log of the container's current run."""
        with contextlib.suppress(OSError):
            return self.machine.log(self.name)
        return ""

    async def until_logged(self, text: str) -> None:
        await until(lambda: text in self.log())

    @property
    def process(self) -> TemplateProcess:
        """The container's first process."""
        process = self.machine.kubelet.find("default", self.name).keepers["user-container"].process
        assert process is not None
        return process

    @property
    def folder(self) -> Path:
        """The pod's own folder."""
        return self.machine.state.pods / self.machine.kubelet.find("default", self.name).id

    async def execute(self, *command: str, stdin: bytes = b"") -> tuple[int, str, str]:
        """Run a command in the container; exit code and output."""
        options = ExecOptions(container="user-container", command=command, has_stdin=bool(stdin))
        session = await self.streams.execute("default", self.name, options)
        if stdin:
            await session.write(stdin)
            session.end_input()
        result = {STDOUT: b"", STDERR: b""}
        async for channel, piece in session.output():
            result[channel] += piece
        code = await session.exit_code()
        await session.close()
        return code, result[STDOUT].decode(), result[STDERR].decode()

    async def until_event(self, reason: str) -> str:
        """The message of an Event of the pod."""
        async with asyncio.timeout(60), self.machine.cluster.watch(EVENT, resource_version="0") as events:
            async for event in events:
                object_ = event.object
                if (object_["involvedObject"]["name"], object_["reason"]) == (self.name, reason):
                    return str(object_["message"])
        raise AssertionError("the watch ended")

    async def delete(self, grace_s: int | None = None) -> None:
        await self.machine.cluster.delete(POD, "default", self.name, grace_s=grace_s)


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        PROCESS,
        pytest.param(CONTAINERS[0], marks=needs_containers("crun")),
        *(pytest.param(kind, marks=[needs_containers(kind.name), pytest.mark.slow]) for kind in CONTAINERS[1:]),
    ],
    ids=lambda kind: kind.name,
)
async def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Machine, Kind]]:
    kind: Kind = request.param
    folder = tmp_path_factory.mktemp(kind.name)
    host = None
    if kind is not PROCESS:
        host, reason = container_host(folder / "state", kind.name)
        assert host is not None, reason
        app_image(folder / "image.tar")
        host.images.store.add(folder / "image.tar", is_kept=True)
    with template_process(folder / "state") as template:
        async with controlled(template.state, containers=host) as machine:
            yield machine, kind
    remove_leftovers(folder / "state")


@pytest_asyncio.fixture(loop_scope="module")
async def stage(home: tuple[Machine, Kind]) -> AsyncIterator[Stage]:
    new_stage = Stage(*home)
    yield new_stage
    for pod in (await new_stage.machine.cluster.list(POD)).items:
        await new_stage.machine.cluster.delete(POD, "default", pod["metadata"]["name"], grace_s=0)
        await new_stage.machine.until_gone(pod["metadata"]["name"])


# Environment


async def test_environment_contains_variables_of_manifest_and_runtime(stage: Stage) -> None:
    value = [{"name": "A", "value": "b"}, {"name": "TWICE", "value": "$(A)$(A)"}, {"name": "LEFT", "value": "$(NONE)"}]
    await stage.start_words("env", env=value)
    entry = dict(line.partition("=")[::2] for line in (await stage.first_log()).splitlines())
    assert (
        entry.keys()
        == {"A", "TWICE", "LEFT", "HOME", "HOSTNAME", "PATH", "PORT", "SERVING_CALLER_URL"} | stage.kind.adds
    )
    assert (entry["A"], entry["TWICE"], entry["LEFT"]) == ("b", "bb", "$(NONE)")
    assert entry["HOSTNAME"] == stage.name
    assert int(entry["PORT"]) > 0


async def test_arguments_expand_variables_without_a_shell(stage: Stage) -> None:
    await stage.start_words("echo", args=["$(A)", "$A", "two words"], env=[{"name": "A", "value": "b"}])
    assert await stage.first_log() == "b $A two words\n"


async def test_working_folder_is_set_by_manifest(stage: Stage) -> None:
    assert await stage.output_of("pwd", workingDir="/tmp") == "/tmp\n"  # noqa: S108 - the container's own


async def test_hostname_is_name_of_pod(stage: Stage) -> None:
    if stage.kind is PROCESS and os.geteuid() != 0:
        pytest.skip("another hostname of a process needs the rights of root")
    assert await stage.output_of("hostname") == f"{stage.name}\n"


async def test_container_has_only_standard_streams_and_empty_input(stage: Stage) -> None:
    # Descriptor 3 belongs to the directory listing.
    assert await stage.output_of("ls /proc/self/fd | cat; cat; echo end") == "0\n1\n2\n3\nend\n"


async def test_container_starts_without_blocked_or_ignored_signals(stage: Stage) -> None:
    await stage.start_words("cat", "/proc/self/status")
    entry = dict(line.partition(":")[::2] for line in (await stage.first_log()).splitlines())
    # Higher signals are reserved by the C library.
    signals = (1 << 31) - 1
    assert (int(entry["SigBlk"], 16), int(entry["SigIgn"], 16) & signals) == (0, 0)


async def test_app_responds_through_queue_proxy_of_its_pod(stage: Stage) -> None:
    await stage.start(stage.kind.server)
    pod = await stage.ready()
    assert (await stage.machine.get(pod))[0] in {200, 404}
    assert pod["status"]["podIP"].startswith("127.64.")
    assert status_of(pod)["ready"]


# Secrets and volumes


async def test_secrets_become_environment_and_files_with_their_mode(stage: Stage) -> None:
    name = f"secret-{stage.name}"
    script = "echo $WHO; cat /etc/secret/k; echo; stat -L -c %a /etc/secret/k; touch /etc/secret/new || echo refused"
    await stage.start(
        script,
        env=[{"name": "WHO", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}],
        volumeMounts=[{"name": "v", "mountPath": "/etc/secret"}],
        pod_spec={"volumes": [{"name": "v", "secret": {"secretName": name, "defaultMode": 0o400}}]},
    )
    pod = await stage.until(
        lambda resource: (
            status_of(resource).get("state", {}).get("waiting", {}).get("reason") == "CreateContainerConfigError"
        )
    )
    assert "a Secret that exists" in status_of(pod)["state"]["waiting"]["message"]
    secret = {"metadata": {"name": name, "namespace": "default"}, "data": {"k": "aGk="}}
    await stage.machine.cluster.create(SECRET, secret)
    lines = (await stage.first_log()).splitlines()
    assert (lines[:3], lines[-1]) == (["hi", "hi", "400"], "refused")


async def test_mounted_config_map_follows_its_object(stage: Stage) -> None:
    name = f"map-{stage.name}"
    await stage.machine.cluster.create(
        CONFIG_MAP, {"metadata": {"name": name, "namespace": "default"}, "data": {"key": "old"}}
    )
    await stage.start(
        "until test $(cat /etc/app/key) = new; do sleep 0.05; done; cat /etc/app/key; sleep 1000",
        volumeMounts=[{"name": "v", "mountPath": "/etc/app"}],
        pod_spec={"volumes": [{"name": "v", "configMap": {"name": name}}]},
    )
    await stage.until(lambda resource: "running" in status_of(resource).get("state", {}))
    await stage.machine.cluster.patch(CONFIG_MAP, "default", name, patch={"data": {"key": "new"}})
    await stage.until_logged("new")


async def test_containers_of_a_pod_share_an_empty_dir(stage: Stage) -> None:
    mounts = [{"name": "v", "mountPath": "/shared"}]
    pod = stage.pod(
        "/bin/sh",
        "-c",
        f"until test -s /shared/word; do sleep 0.05; done; cat /shared/word; {stage.kind.server}",
        volumeMounts=mounts,
        ports=[{"containerPort": 8080}],
        pod_spec={"volumes": [{"name": "v", "emptyDir": {}}]},
    )
    sidecar = {"name": "beside", "image": IMAGE, "volumeMounts": mounts}
    sidecar["command"] = ["/bin/sh", "-c", "echo from beside > /shared/word; exec sleep 1000"]
    pod["spec"]["containers"].append(sidecar)
    await stage.machine.start(pod)
    await stage.ready()
    assert "from beside" in stage.log()


# Init containers


def pod_with_init_containers(stage: Stage, *scripts: str, **spec: Any) -> Object:  # noqa: ANN401 - fields of the API
    """A pod with init containers that run these scripts before its app."""
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/shared"}]}
    app = f"cat /shared/words; {stage.kind.server}"
    pod = stage.pod("/bin/sh", "-c", app, **mounts, pod_spec={"volumes": [{"name": "v", "emptyDir": {}}], **spec})
    pod["spec"]["initContainers"] = [
        {"name": f"first-{number}", "image": IMAGE, "command": ["/bin/sh", "-c", script], **mounts}
        for number, script in enumerate(scripts)
    ]
    return pod


async def test_init_containers_run_in_order_until_each_succeeds(stage: Stage) -> None:
    once = "test -e /shared/seen || { touch /shared/seen; exit 3; }; echo ${PORT:-none} >> /shared/words"
    await stage.machine.start(pod_with_init_containers(stage, once, "echo two >> /shared/words"))
    pod = await stage.ready()
    await stage.until_logged("none\ntwo\n")
    statuses = pod["status"]["initContainerStatuses"]
    assert [(status["restartCount"], status["state"]["terminated"]["exitCode"]) for status in statuses] == [
        (1, 0),
        (0, 0),
    ]


async def test_initializing_pod_is_not_ready_and_can_be_deleted(stage: Stage) -> None:
    number = 100_000 + next(_numbers)
    await stage.machine.start(pod_with_init_containers(stage, f"sleep {number} & wait"))
    pod = await stage.until(lambda entry: "running" in str(nested(entry, "status", "initContainerStatuses")))
    assert not is_ready(pod)
    assert status_of(pod)["state"]["waiting"]["reason"] == "PodInitializing"
    await until(lambda: sleeping(number))
    await stage.delete(grace_s=0)
    await stage.machine.until_gone(stage.name)
    await until(lambda: not sleeping(number))


async def test_pod_with_restart_policy_never_fails_with_its_init_container(stage: Stage) -> None:
    resource = pod_with_init_containers(stage, "echo no database; exit 3", restartPolicy="Never")
    # Containers of a revision's pod are always restarted.
    resource["metadata"]["labels"] = {}
    await stage.machine.start(resource)
    pod = await stage.until(lambda entry: nested(entry, "status", "phase") == "Failed")
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"] == "no database"


# Logs, exit codes and restarts


async def test_stdout_and_stderr_are_logged_in_order(stage: Stage) -> None:
    assert await stage.output_of("echo one; echo two >&2; echo three") == "one\ntwo\nthree\n"


async def test_exit_code_and_last_log_lines_are_in_status(stage: Stage) -> None:
    await stage.start("echo no such luck; exit 3")
    pod = await stage.until(
        lambda resource: status_of(resource).get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )
    ended = status_of(pod)["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "no such luck")
    assert "starts again in 1 s" in status_of(pod)["state"]["waiting"]["message"]


async def test_successful_container_is_restarted(stage: Stage) -> None:
    await stage.start("exit 0")
    assert ((await stage.ended())["exitCode"], (await stage.ended())["reason"]) == (0, "Completed")
    await stage.until(lambda resource: status_of(resource).get("restartCount", 0) >= 2)


async def test_killed_container_has_exit_code_128_plus_signal(stage: Stage) -> None:
    await stage.start(stage.kind.server)
    await stage.ready()
    stage.process.send(signal.SIGKILL)
    again = await stage.until(lambda resource: is_ready(resource) and status_of(resource)["restartCount"] == 1)
    assert status_of(again)["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL


async def test_missing_command_is_reported(stage: Stage) -> None:
    await stage.start_words("/no/such")
    pod = await stage.until(lambda resource: "/no/such" in str(status_of(resource).get("state")))
    assert not is_ready(pod)
    assert status_of(pod)["state"]["waiting"]["reason"] == "RunContainerError"


# Probes and readiness


async def test_pod_is_ready_after_its_readiness_command_succeeds(stage: Stage) -> None:
    probe = {"exec": {"command": ["/bin/sh", "-c", "test -e /state/warm"]}, "periodSeconds": 0.1}
    await stage.start(stage.kind.server, readinessProbe=probe, **_state_volume())
    await stage.until(lambda resource: "running" in status_of(resource).get("state", {}))
    assert not is_ready(await stage.machine.cluster.get(POD, "default", stage.name))
    assert (await stage.execute("touch", "/state/warm"))[0] == 0
    await stage.ready()


async def test_failed_liveness_command_restarts_container(stage: Stage) -> None:
    probe = {
        "exec": {"command": ["/bin/sh", "-c", "test ! -e /state/sick"]},
        "periodSeconds": 0.1,
        "failureThreshold": 2,
    }
    await stage.start(f"rm -f /state/sick; {stage.kind.server}", livenessProbe=probe, **_state_volume())
    await stage.ready()
    assert (await stage.execute("touch", "/state/sick"))[0] == 0
    await stage.until(lambda resource: status_of(resource)["restartCount"] == 1)
    assert "exit code 1" in await stage.until_event("Unhealthy")
    ended = await stage.ended()
    assert ended["reason"] == "Unhealthy"
    assert re.match("livenessProbe of .* failed 2 times: exit code 1", ended["message"])


@pytest.mark.parametrize(
    ("probe", "failure"),
    [
        ({"httpGet": {"path": "/none", "port": 0}}, "GET /none: "),
        ({"tcpSocket": {"port": 0}}, "no connection to port"),
    ],
)
async def test_failed_liveness_probe_is_reported(stage: Stage, probe: dict[str, Any], failure: str) -> None:
    often = {"periodSeconds": 0.1, "failureThreshold": 2}
    # Many apps exit with 0 at SIGTERM, as this one.
    quiet = "trap 'exit 0' TERM; echo bye; while true; do sleep 0.05; done"
    await stage.start(quiet, livenessProbe={**probe, **often})
    ended = await stage.ended()
    assert ended["reason"] == "Unhealthy"
    assert re.match(f"livenessProbe of .* failed 2 times: {failure}", ended["message"])


async def test_http_and_tcp_probes_reach_the_app(stage: Stage) -> None:
    often = {"periodSeconds": 0.1, "failureThreshold": 60}
    web, tcp = {"httpGet": {"path": "/", "port": 0}, **often}, {"tcpSocket": {"port": 0}, **often}
    await stage.start(f"touch /tmp/index.html; {stage.kind.server}", startupProbe=tcp, livenessProbe=web)
    pod = await stage.ready()
    assert status_of(pod)["restartCount"] == 0


async def test_pod_with_a_failing_container_is_not_ready(stage: Stage) -> None:
    resource = stage.pod("/bin/sh", "-c", stage.kind.server, ports=[{"containerPort": 8080}])
    resource["spec"]["containers"].append({"name": "beside", "image": IMAGE, "command": ["/bin/sh", "-c", "exit 7"]})
    await stage.machine.start(resource)

    def sidecar_status(pod: Object) -> Object:
        statuses = pod.get("status", {}).get("containerStatuses", ())
        return next((status for status in statuses if status["name"] == "beside"), {})

    # While the container runs again, the pod is ready for a moment, as in Kubernetes.
    pod = await stage.until(
        lambda fields: (
            sidecar_status(fields).get("restartCount", 0) >= 1
            and "waiting" in sidecar_status(fields)["state"]
            and status_of(fields)["name"] != "beside"
        )
    )
    assert sidecar_status(pod)["lastState"]["terminated"]["exitCode"] == 7
    assert not is_ready(pod)
    # The first container continues.
    assert status_of(pod)["restartCount"] == 0


# Termination


async def test_deleted_pod_completes_requests_in_flight(stage: Stage) -> None:
    await stage.start(stage.kind.slow_server)
    pod = await stage.ready()
    task = asyncio.create_task(stage.machine.get(pod, stage.kind.slow_path))
    await until_busy(stage, pod["status"]["podIP"])
    process, folder = stage.process, stage.folder
    await stage.delete()
    assert (await task)[0] == 200
    await stage.machine.until_gone(stage.name)
    assert process.ended.done()
    assert not folder.exists()


async def test_container_completes_its_work_after_sigterm(stage: Stage) -> None:
    await stage.start(
        "trap 'echo asked; sleep 0.3; echo done; exit 0' TERM; echo up; while :; do sleep 0.05; done",
        pod_spec={"terminationGracePeriodSeconds": 60},
    )
    await stage.until_logged("up")
    process = stage.process
    process.send(signal.SIGTERM)
    assert await asyncio.wait_for(asyncio.shield(process.ended), 60) == 0
    assert (await stage.first_log()).splitlines()[-2:] == ["asked", "done"]


@pytest.mark.parametrize("script", ["exec sleep 1000", "sleep 1000; true"])
async def test_container_without_sigterm_handler_ends_before_its_grace_period(stage: Stage, script: str) -> None:
    await stage.start(f"echo up; {script}", pod_spec={"terminationGracePeriodSeconds": 3600})
    await stage.until_logged("up")
    process = stage.process
    process.send(signal.SIGTERM)
    ended = await asyncio.wait_for(asyncio.shield(process.ended), 60)
    # PID 1 of a container does not receive signals without a handler, so it is killed.
    assert ended in {-signal.SIGTERM, -signal.SIGKILL}


async def test_container_that_ignores_sigterm_is_killed_after_its_grace_period(stage: Stage) -> None:
    await stage.start(
        "trap '' TERM; echo deaf; while :; do sleep 1; done", pod_spec={"terminationGracePeriodSeconds": 1}
    )
    await stage.until_logged("deaf")
    process = stage.process
    await stage.delete()
    await stage.machine.until_gone(stage.name)
    assert process.ended.result() == -signal.SIGKILL


async def test_processes_started_by_container_end_with_its_pod(stage: Stage) -> None:
    number = 100_000 + next(_numbers)
    await stage.start(f"(setsid sleep {number} &) 2>/dev/null || sleep {number} & {stage.kind.server}")
    await stage.ready()
    await until(lambda: sleeping(number))
    await stage.delete(grace_s=0)
    await stage.machine.until_gone(stage.name)
    await until(lambda: not sleeping(number))


# Resources and security context


async def test_container_above_memory_limit_is_reported_as_oom_killed(stage: Stage) -> None:
    grow = "sleep 0.3; exec dd if=/dev/zero of=/dev/null bs=200M count=1000"
    await stage.start(grow, resources={"limits": {"memory": "50Mi"}})
    ended = await stage.ended()
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 128 + signal.SIGKILL)


async def test_request_that_exhausts_memory_receives_502(stage: Stage) -> None:
    await stage.start(stage.kind.greedy_server, resources={"limits": {"memory": "50Mi"}})
    pod = await stage.ready()
    assert await stage.machine.get(pod) == (502, OUT_OF_MEMORY.decode())


async def test_cpu_limit_is_enforced_or_reported_as_not_enforced(stage: Stage) -> None:
    await stage.start(stage.kind.server, resources={"limits": {"cpu": "500m"}})
    await stage.ready()
    if quota_of(stage.process.pid) != "50000":
        assert "500m" in await stage.until_event("CpuLimitNotEnforced")


async def test_run_as_user_is_enforced_or_reported_as_not_enforced(stage: Stage) -> None:
    await stage.start(f"id -u; {stage.kind.server}", securityContext={"runAsUser": 1000})
    await stage.until_logged("\n")
    if stage.log().splitlines()[0] != "1000":
        assert "runAsUser" in await stage.until_event("SecurityContextNotEnforced")


async def test_read_only_root_is_enforced_or_reported_as_not_enforced(stage: Stage) -> None:
    script = "touch /etc/serving-conformance 2>/dev/null && echo written; rm -f /etc/serving-conformance; echo end; "
    await stage.start(script + stage.kind.server, securityContext={"readOnlyRootFilesystem": True})
    await stage.until_logged("end")
    if "written" in stage.log():
        assert "readOnlyRootFilesystem" in await stage.until_event("SecurityContextNotEnforced")


# Exec


async def test_exec_command_has_environment_and_streams(stage: Stage) -> None:
    await stage.start(stage.kind.server, env=[{"name": "A", "value": "b"}])
    await stage.ready()
    code, output, errors = await stage.execute("/bin/sh", "-c", "echo $A; cat; echo bad >&2; exit 4", stdin=b"given\n")
    assert (code, output, errors) == (4, "b\ngiven\n", "bad\n")


async def test_killed_exec_command_has_exit_code_128_plus_signal(stage: Stage) -> None:
    await stage.start(stage.kind.server)
    await stage.ready()
    assert (await stage.execute("/bin/sh", "-c", "kill -9 $$"))[0] == 128 + signal.SIGKILL


async def test_missing_exec_command_is_reported_by_name(stage: Stage) -> None:
    await stage.start(stage.kind.server)
    await stage.ready()
    with pytest.raises(OSError, match="no-such-command"):
        await stage.execute("no-such-command")


def _state_volume() -> dict[str, Any]:
    """A volume that outlives the container, at the same path in every runtime."""
    return {
        "volumeMounts": [{"name": "state", "mountPath": "/state"}],
        "pod_spec": {"volumes": [{"name": "state", "emptyDir": {}}]},
    }


def sleeping(number: int) -> bool:
    wanted = f"sleep\0{number}\0".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes().endswith(wanted):
                return True
    return False


def quota_of(process: int) -> str:
    """A process's quota of cpu time in the kernel, for either version of cgroups."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{process}/cgroup").read_text().splitlines()]
    places = {kind: path.strip("/") for _, kinds, path in lines for kind in kinds.split(",")}
    with contextlib.suppress(OSError):
        if "cpu" not in places:
            return (Path("/sys/fs/cgroup") / places[""] / "cpu.max").read_text().split()[0]
        folder = Path("/sys/fs/cgroup/cpu") / places["cpu"]
        # runc creates its own cgroup below the container's.
        return next(
            quota
            for path in (folder, folder.parent)
            if (quota := (path / "cpu.cfs_quota_us").read_text().strip()) != "-1"
        )
    return ""


async def until_busy(stage: Stage, address: str) -> None:
    """Wait until the queue-proxy has a request in flight."""
    await until(lambda: has_request(stage.name, address))


async def has_request(pod: str, address: str) -> bool:
    reader, writer = await asyncio.open_connection(address, 8022)
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: h\r\n{secret_line(pod)}Connection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    assert text.startswith("HTTP/1.1 200"), text
    return "queueproxy_requests_inside 1" in text
