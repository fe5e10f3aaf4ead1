"""An attacker's app next to a victim pod: isolation denies each attempt. docs/isolation.md lists the attempts."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from serving.core.model.knative import CONDITION_ISOLATED
from serving.core.model.objects import condition_of
from serving.home.processes.confine import landlock_abi
from serving.home.processes.isolation import isolation_of, missing_layers
from tests.integration.local_stage import HELLO, controlled, manifest, template_process
from tests.integration.test_preload import event_with, preloaded, response_of
from tests.tidy.sources import ROOT

ATTACKER = ROOT / "tests" / "integration" / "attacker.py"
PORT_OF_A_POD = 32767
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - folders of the attempts
# Landlock restricts signals from ABI 6 on.
SCOPE_ABI = 6
# On a machine that can mount, all layers must work.
MAY_MOUNT = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0


# The interpreter of a virtual environment may be in a folder that other users cannot enter.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable


def command(path: Path) -> str:
    return shlex.join([PYTHON, str(path)])


def is_open_to_all(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in path.resolve().parents)


async def attacked(folder: Path, mode: str, **more: object) -> dict[str, str]:
    """The results of an attacker's attempts on a victim pod, by attempt; "" means success."""
    with template_process(folder / "state", isolation=mode) as template:
        template.state.token.write_text("a token")
        async with controlled(template.state, isolation=mode) as machine:
            words = "umask 0; for one in tmp var/tmp dev/shm; do echo a secret > /$one/serving-victim; done"
            victim = await machine.start(manifest("victim", f"{words}; exec {command(HELLO)}"))
            # The path of the token in the command does not make it visible.
            limits = {"limits": {"memory": "128Mi"}}
            await machine.start(manifest("attacker", f"{command(ATTACKER)} {template.state.token}", resources=limits))
            victim, attacker = await machine.ready("victim"), await machine.ready("attacker")
            run = machine.kubelet.find("default", "victim")
            # In the machine's network, which pods share: an abstract socket of the system, and a port without a pod.
            system_socket, free = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
            system_socket.bind(f"\0serving-test-{os.getpid()}")
            system_socket.listen()
            free_port = free.getsockname()[1]
            free.close()
            (template.state.pods / run.id / "secret").write_text("a secret")
            if mode != "none":
                # The victim's temporary file is in its pod's folder and counts as the pod's disk usage.
                assert (template.state.pods / run.id / ".tmp" / "serving-victim").read_text() == "a secret\n"
            values = {
                "state": str(template.state.path),
                "pod": run.id,
                "pid": run.sessions["user-container"],
                "supervisor": template.supervisor.pid,
                "port": run.location.port,
                "address": run.location.address,
                "socket": f"serving-test-{os.getpid()}",
                "free_port": free_port,
                # The last port of the range for apps.
                "pod_port": PORT_OF_A_POD,
                **more,
            }
            with system_socket:
                status, body = await machine.get(attacker, f"/?{quote(json.dumps(values))}")
            assert status == 200
            # The victim still serves.
            assert (await machine.get(victim))[0] == 200
            document: dict[str, str] = json.loads(body)
            return document


@pytest.mark.parametrize("mode", ["default", "strict"])
async def test_isolation_denies_each_attempt_of_an_attacker(tmp_path: Path, mode: str) -> None:
    (tmp_path / "state").mkdir()
    isolation = isolation_of(mode, tmp_path / "state")
    assert isolation is not None
    missing = missing_layers(isolation)
    if landlock_abi() < SCOPE_ABI or (missing and not MAY_MOUNT):
        pytest.skip("this machine has not all layers")
    assert missing == []
    if mode == "strict" and not all(map(is_open_to_all, (ATTACKER, Path(PYTHON)))):
        pytest.skip("another user may not read this test")
    entry = await attacked(tmp_path, mode)
    succeeded = {name for name, refusal in entry.items() if not refusal}
    assert succeeded == set()
    # In a PID namespace the victim's process does not exist.
    refusal = "ProcessLookupError" if mode == "strict" else "PermissionError"
    assert entry["kill another pod"].startswith(refusal)
    assert entry["fill the memory"] == "killed by signal 9"
    assert entry["fork without end"].startswith("BlockingIOError")
    assert entry["read the token"].startswith("FileNotFoundError")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder with a state folder that other users can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder)
        path.chmod(0o755)
        (path / "state").mkdir(mode=0o755)
        (path / "state" / "pods").mkdir(mode=0o700)
        yield path


async def test_state_folder_below_open_folders_is_hidden(open_folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("folders are hidden from a pod's own user, which needs root")
    entry = await attacked(open_folder, "default", only=["read the token"])
    # The token is hidden, not only unreadable.
    assert entry["read the token"].startswith("FileNotFoundError")


async def test_folders_of_unknown_pods_are_removed_at_start(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        (template.state.pods / "gone" / ".volumes" / "secret").mkdir(parents=True)
        async with controlled(template.state) as machine:
            await machine.start(manifest(command=command(HELLO)))
            await machine.ready()
            names = {path.name for path in template.state.pods.iterdir()}
            assert names == {machine.kubelet.find("default", "p").id}
        # The next control process adopts the pod and its folder.
        async with controlled(template.state) as machine:
            pod = await machine.ready()
            assert {path.name for path in template.state.pods.iterdir()} == names
            assert (await machine.get(pod))[0] == 200


async def test_pods_of_preloaded_revision_have_a_private_tmp(tmp_path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="serving-test-") as file_of_machine:
        file_of_pod = f"{file_of_machine.name}-mine"
        look = (
            f"import pathlib; sys.stderr.write('sees %s\\n' % pathlib.Path({file_of_machine.name!r}).exists()); "
            f"pathlib.Path({file_of_pod!r}).touch(); pathlib.Path('/dev/shm').joinpath({Path(file_of_pod).name!r}).touch()"
        )
        with template_process(tmp_path / "state") as template:
            async with controlled(template.state) as machine:
                await machine.start(preloaded(tmp_path, "p", more=look))
                await machine.ready()
                await event_with(machine, "Preloaded")
                await machine.start(preloaded(tmp_path, "q", more=look))
                process, importer, *_ = await response_of(machine, "q")
                assert process != importer
                # Both imports wrote to folders that are private to the revision's pods.
                assert machine.log("p").count("sees False") == 2
                places = [Path(folder, Path(file_of_pod).name) for folder in TEMPORARY]
                assert [path for path in places if path.exists()] == []
                (temporary,) = template.state.pods.glob("warm-*/.tmp")
                assert (temporary / Path(file_of_pod).name).exists()


async def test_warm_process_imports_app_under_isolation(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        template.state.token.write_text("a token")
        async with controlled(template.state) as machine:
            look = (
                f"import pathlib; sys.stderr.write('sees %s\\n' % pathlib.Path({str(template.state.token)!r}).exists())"
            )
            await machine.start(preloaded(tmp_path, "p", more=look))
            await machine.ready()
            await event_with(machine, "Preloaded")
            # The first pod and then the warm process have imported the app.
            assert machine.log("p").count("sees False") == 2
            await machine.start(preloaded(tmp_path, "q", more=look))
            process, importer, *_ = await response_of(machine, "q")
            assert process != importer


@pytest.mark.skipif(os.geteuid() != 0, reason="only as root a pod has a user of its own")
@pytest.mark.parametrize("rights", [0o755, 0o700])
async def test_user_of_pod_has_a_name_and_access_to_its_folder(rights: int) -> None:
    """With umask 077, and a state folder below an open or a closed folder; initdb needs this."""
    with tempfile.TemporaryDirectory() as above:
        os.chmod(above, rights)  # noqa: PTH101 - asynchronous code does no I/O with paths
        os.mkdir(state := os.path.join(above, "state"))  # noqa: PTH102, PTH118
        mask = os.umask(0o077)
        try:
            with template_process(Path(state), isolation="default") as template:
                async with controlled(template.state, isolation="default") as machine:
                    await machine.start(manifest(command=f"id -un && touch mine && exec {command(HELLO)}"))
                    await machine.ready()
                    run, isolation = machine.kubelet.find("default", "p"), isolation_of("default", Path(state))
                    assert isolation is not None
                    owner = (template.state.pods / run.id / "mine").stat().st_uid
                    assert owner == isolation.user_of(run.location.address)
                    assert machine.log("p").splitlines()[0] == "pod"
        finally:
            os.umask(mask)


@pytest.mark.skipif(os.geteuid() != 0, reason="only as root a pod has a user of its own")
def test_isolation_trial_does_not_change_owner_of_output_file(tmp_path: Path) -> None:
    """The operator's streams can be a file, as with ``serving up > FILE``."""
    state = repr(str(tmp_path))
    module = "serving.home.processes.isolation"
    trial = f"from {module} import *; missing_layers(isolation_of('default', Path({state})))"
    with (tmp_path / "output").open("wb") as output:
        subprocess.run([sys.executable, "-c", trial], check=True, stdin=output, stdout=output, stderr=output)
    assert (tmp_path / "output").stat().st_uid == 0


async def test_attacker_succeeds_without_isolation(tmp_path: Path) -> None:
    """Shows that the attempts can succeed."""
    if os.geteuid() != 0:
        pytest.skip("what succeeds depends on the user")
    # Only attempts that do not harm the machine.
    only = ["read the token", "read another pod's files", "read another pod's environment", "kill another pod"]
    only += [f"read another pod's file in {folder}" for folder in TEMPORARY]
    try:
        assert await attacked(tmp_path, "none", only=only) == dict.fromkeys(only, "")
    finally:
        for folder in TEMPORARY:
            (Path(folder) / "serving-victim").unlink(missing_ok=True)


async def test_missing_isolation_is_reported_in_pod_condition(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state, isolation="none", gap="--isolation none") as machine:
            await machine.start(manifest())
            pod = await machine.ready()
            condition = condition_of(pod, CONDITION_ISOLATED)
            assert (condition["status"], condition["reason"], condition["message"]) == (
                "False",
                "LayersMissing",
                "--isolation none",
            )
