"""The bug report of a running system with secrets in Secrets, ConfigMaps, commands, variables and requests."""

import tarfile
from pathlib import Path

import yaml

from tests.e2e.cli_stage import SAMPLE, Stage

PLANTED = "planted"
MANIFESTS = [
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "stringData": {"key": f"{PLANTED}-data\n"}},
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": {"conf": f"login {PLANTED}-conf"}},
    {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "app"},
        "spec": {
            "template": {
                "metadata": {"annotations": {"serving.dev/command": f"{SAMPLE} --db=pg://me:{PLANTED}-url@db/x"}},
                "spec": {"containers": [{"image": "app", "env": [{"name": "DSN", "value": f"{PLANTED}-env"}]}]},
            }
        },
    },
]


def test_bug_report_contains_no_secrets(serving: Stage, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    serving("apply", "-f", "-", stdin=yaml.safe_dump_all(MANIFESTS))
    secret = ("--secret", "KEY=db:key", "--access", "private", "-e", f"OWN={PLANTED}-option")
    serving("deploy", "shy", str(tmp_path), "--no-snapshot", "--command", SAMPLE, *secret)
    tokens = [
        serving("token", "shy").stdout.strip(),
        serving("token", "create", "bob", "--role", "view").stdout.split()[-1],
    ]
    serving("invoke", "shy", f"/?api_key={PLANTED}-query")
    serving("exec", f"--state={serving.state}", "shy", "--", "true", f"{PLANTED}-word")
    serving("bundle", str(file))
    with tarfile.open(file) as archive:
        ios = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        texts = {name: content.read().decode() for name, content in ios.items() if content is not None}
    assert all(len(token) > 20 for token in tokens)
    assert not [(name, word) for name, text in texts.items() for word in (PLANTED, *tokens) if word in text]
    services = texts["serving-bundle/objects/services.serving.knative.dev.json"]
    assert all(word in services for word in ('"app"', '"shy"', '"DSN"', "pg://me:<removed>@db/x"))
    assert not [name for name in texts if "secrets" in name]
