"""The last log lines of a revision's pods, in commands and messages, over a served API."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

from click.testing import CliRunner, Result

from serving.core.model.event import EventText, about, new_event
from serving.core.model.objects import Object
from serving.home.apiserver.logoptions import LogOptions, StoredLog
from serving.home.kubelet.podstreams import FilePodLogs
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import EVENT, POD, REVISION, SERVING_SERVICE
from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.client.objects import last_lines
from serving.tools.cli.services.describe import describe
from serving.tools.cli.services.logs import logs as logs_command
from serving.tools.cli.services.waiting import failure_text
from tests.integration.api_server import served

# 2033-05-18T03:33:20Z; logs older than the service belong to an earlier service of the same name.
LATER_S = 2_000_000_000

READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}

TRACE = [
    "Traceback (most recent call last):",
    *[f'  File "app.py", line {at}, in f' for at in range(20)],
    "KeyError: 'A'",
]
WHY = "Container failed with: " + "\n".join([TRACE[0], "  ...", *TRACE[-10:]])


class RestartedLogs:
    """The log of a container that has been restarted."""

    def __init__(self, *, log: bytes) -> None:
        self._log = log

    def stored(self, namespace: str) -> list[StoredLog]:
        """No logs of deleted pods."""
        del namespace
        return []

    async def read(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        """The current log, or the one of the previous run."""
        assert (namespace, pod, options.container) == ("default", "p", "app")
        yield b"no such key\n" if options.previous else self._log


async def lines(folder: Path, *, log: bytes) -> list[str]:
    cluster = MemoryCluster()
    metadata = {"name": "p", "namespace": "default", "labels": {"serving.knative.dev/revision": "hello-00001"}}
    await cluster.create(POD, {"metadata": metadata, "spec": {"containers": [{"name": "app"}]}})
    async with served(cluster, folder, logs=RestartedLogs(log=log)) as api:
        return await asyncio.to_thread(last_lines, ApiClient(kubeconfig=api.kubeconfig), "hello-00001", count=10)


async def test_silent_restarted_container_is_quoted_from_previous_run(tmp_path: Path) -> None:
    assert await lines(tmp_path, log=b"\n") == ["no such key"]


async def test_container_with_output_is_quoted_from_current_run(tmp_path: Path) -> None:
    assert await lines(tmp_path, log=b"reading config\n") == ["reading config"]


async def logs_of_deleted_pods(folder: Path, *words: str) -> tuple[Result, list[str]]:
    """The output of ``serving logs``, and the quoted lines, for a service without pods."""
    cluster = MemoryCluster()
    labels = {"serving.knative.dev/service": "hello"}
    await cluster.create(SERVING_SERVICE, {"metadata": {"name": "hello"}, "spec": {}})
    await cluster.patch(SERVING_SERVICE, "default", "hello", patch=READY, subresource="status")
    await cluster.create(REVISION, {"metadata": {"name": "hello-00001", "labels": labels}, "spec": {}})
    logs = folder / "logs"
    for number, (pod, name) in enumerate(
        [
            ("hello-00001-deployment-aaaaa", "app.log"),
            ("hello-00001-deployment-bbbbb", "app.previous.log"),
            ("other-00001-deployment-ccccc", "app.log"),
        ]
    ):
        (logs / "default" / pod).mkdir(parents=True)
        (logs / "default" / pod / name).write_text(f"last words of {pod[-5:]}\n")
        (logs / "default" / pod / "queue-proxy.log").write_text("drained\n")
        for log in (logs / "default" / pod).iterdir():
            os.utime(log, (LATER_S + number, LATER_S + number))
    async with served(cluster, folder, logs=FilePodLogs(logs)) as api:
        quoted = await asyncio.to_thread(last_lines, ApiClient(kubeconfig=api.kubeconfig), "hello-00001", count=10)
        arguments = ["--kubeconfig", str(api.kubeconfig), "hello", *words]
        printed = await asyncio.to_thread(CliRunner().invoke, logs_command, arguments)
        return printed, quoted


async def test_logs_of_deleted_pods_are_printed_with_previous(tmp_path: Path) -> None:
    printed, quoted = await logs_of_deleted_pods(tmp_path, "--previous")
    assert printed.exit_code == 0
    assert printed.stdout.splitlines() == ["00001-aaaaa  last words of aaaaa", "00001-bbbbb  last words of bbbbb"]
    assert quoted == ["last words of bbbbb"]


async def test_logs_of_deleted_pods_are_filtered_by_pattern_and_time(tmp_path: Path) -> None:
    # Both logs were written within seconds after LATER_S.
    printed, _ = await logs_of_deleted_pods(
        tmp_path / "all", "--grep", "words of [ab]", "--until", "2033-05-18T03:33:30Z"
    )
    assert printed.stdout.splitlines() == ["00001-aaaaa  last words of aaaaa", "00001-bbbbb  last words of bbbbb"]
    printed, _ = await logs_of_deleted_pods(tmp_path / "since", "--since", "2033-05-18T03:33:21Z", "-o", "json")
    assert [json.loads(line) for line in printed.stdout.splitlines()] == [
        {
            "time": "2033-05-18T03:33:21.000000Z",
            "revision": "hello-00001",
            "pod": "hello-00001-deployment-bbbbb",
            "line": "last words of bbbbb",
        }
    ]


async def test_deleted_pod_is_selected_by_end_of_its_name(tmp_path: Path) -> None:
    printed, _ = await logs_of_deleted_pods(tmp_path, "--pod", "aaaaa", "-c", "queue-proxy", "--no-prefix")
    assert printed.stdout == "drained\n"


async def test_logs_of_service_at_zero_mention_previous_and_follow(tmp_path: Path) -> None:
    printed, _ = await logs_of_deleted_pods(tmp_path)
    assert (
        printed.stderr
        == "hello has no pod now: it is at zero; --previous prints the logs of its last pods, -f waits for a pod\n"
    )
    printed, _ = await logs_of_deleted_pods(tmp_path / "other", "--pod", "none")
    assert (printed.exit_code, printed.stderr) == (1, "no pod of hello ends with none; there is none\n")


def conditions(why: str, **by_type: str) -> list[Object]:
    reasons = {"False": {"reason": "RevisionFailed", "message": why}}
    return [{"type": name, "status": status, **reasons.get(status, {})} for name, status in by_type.items()]


async def texts_of_failure(folder: Path, *, newest: str, why: str = WHY, **by_type: str) -> tuple[str, str]:
    """The failure text of a waiting command and the output of ``serving describe`` for a failed first revision."""
    cluster = MemoryCluster()
    labels = {"serving.knative.dev/service": "hello"}
    spec = {"traffic": [{"revisionName": "hello-00001", "percent": 100}]}
    await cluster.create(SERVING_SERVICE, {"metadata": {"name": "hello"}, "spec": spec})
    status = {
        "latestCreatedRevisionName": newest,
        "observedGeneration": 1,
        "conditions": conditions(why, Ready="False", **by_type),
    }
    service = await cluster.patch(SERVING_SERVICE, "default", "hello", patch={"status": status}, subresource="status")
    for name, ready in (("hello-00001", "False"), ("hello-00002", "True")):
        revision = await cluster.create(REVISION, {"metadata": {"name": name, "labels": labels}, "spec": {}})
        patch = {"status": {"conditions": conditions(why, Ready=ready)}}
        await cluster.patch(REVISION, "default", name, patch=patch, subresource="status")
        pod = folder / "logs" / "default" / f"{name}-deployment-aaaaa"
        pod.mkdir(parents=True)
        (pod / "app.log").write_text("\n".join(TRACE) if ready == "False" else "all is well\n")
        words = EventText(reason="ExitCode1", message=WHY, is_warning=True)
        event = new_event(about(revision), words, suffix=name, component="controller", now="2026-01-01T00:00:00Z")
        await cluster.create(EVENT, event)
    async with served(cluster, folder, logs=FilePodLogs(folder / "logs")) as api:
        result = await asyncio.to_thread(failure_text, ApiClient(kubeconfig=api.kubeconfig), service)
        arguments = ["--kubeconfig", str(api.kubeconfig), "hello"]
        return result, (await asyncio.to_thread(CliRunner().invoke, describe, arguments)).stdout


async def test_failure_text_quotes_log_of_failed_revision_with_traffic(tmp_path: Path) -> None:
    message, _ = await texts_of_failure(
        tmp_path, newest="hello-00002", why="exit code 1", ConfigurationsReady="True", RoutesReady="False"
    )
    log = "".join(f"\n  {line}" for line in [TRACE[0], "  ...", *TRACE[-10:]])
    assert message == f"hello: RevisionFailed: exit code 1\nlast lines of the log of hello-00001:{log}"


async def test_failure_text_omits_log_lines_that_are_in_reason(tmp_path: Path) -> None:
    message, _ = await texts_of_failure(tmp_path, newest="hello-00002", ConfigurationsReady="True", RoutesReady="False")
    assert message == f"hello: RevisionFailed: {WHY}"


async def test_describe_prints_a_failure_once_from_its_beginning(tmp_path: Path) -> None:
    _, page = await texts_of_failure(tmp_path, newest="hello-00001", ConfigurationsReady="False")
    assert (
        "RevisionFailed: Container failed with: Traceback (most recent call\n           last): ... KeyError: 'A'"
        in page
    )
    assert page.count("line 19, in f") == 1
    assert "log of hello-00001\n  Traceback (most recent call last):\n    ...\n" in page
