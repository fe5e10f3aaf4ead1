"""Each command rejects a named pipe or a device as its file argument."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from serving.tools.cli.main import main

# Each command reads FILE and exits before it contacts a server.
COMMANDS = (
    "apply --state STATE -f FILE",
    "delete --state STATE -f FILE",
    "convert FILE",
    "deploy --state STATE app FOLDER --command true --env-file FILE",
    "update --state STATE app --env-file FILE",
    "invoke --state STATE app -d @FILE",
    "get --kubeconfig FILE",
    "restore --state EMPTY FILE",
    "image import --state EMPTY FILE",
    "config check FILE",
    "replay FILE",
    "simulate --trace FILE",
    "simulate --from-log FILE",
    "simulate --load 1:1 --nodes 1 --node-group FILE",
    "up --state EMPTY --tls-cert FILE --tls-key FILE",
)

KUBECONFIG = """
apiVersion: v1
clusters: [{name: a, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: a, user: {}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
"""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", ["pipe", "device"])
@pytest.mark.timeout(60)
def test_named_pipe_or_device_as_file_argument_is_rejected(command: str, what: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = str(tmp_path / "pipe") if what == "pipe" else "/dev/zero"
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "kubeconfig").write_text(KUBECONFIG)
    names = {"FILE": file, "STATE": str(tmp_path / "state"), "EMPTY": str(tmp_path / "empty"), "FOLDER": str(tmp_path)}
    words = [names.get(word, word.replace("FILE", file)) for word in command.split()]
    done = CliRunner().invoke(main, words)
    assert done.exit_code in (1, 2), done.output
    assert file in done.stderr
    assert ("named pipe" if what == "pipe" else "a device") in done.stderr, done.stderr
