"""Each command with ``-o json`` prints only JSON: one value, or one value per line."""

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from serving.tools.cli.main import main
from tests.e2e.cli_stage import SAMPLE, Stage
from tests.e2e.test_adopt import app
from tests.unit.tools.cli.test_main import commands

pytestmark = pytest.mark.timeout(300)

MANIFEST = "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {key: value}}"
GROUP = """
apiVersion: serving.dev/v1alpha1
kind: NodeGroup
metadata: {name: group}
spec: {labelKey: pool, labelValue: none, minNodes: 0, maxNodes: 2}
"""
# The arguments of each command, in an order in which all succeed.
STEPS = {
    "deploy": ("app", ".", "--no-snapshot", "--command", SAMPLE, "--access", "private"),
    "apply": ("-f", "one.yaml"),
    "update": ("app", "-e", "A=1"),
    "scale": ("app", "--min", "1"),
    "wait": ("app", "--for", "ready"),
    "invoke": ("app",),
    "traffic": ("app",),
    "url": ("app",),
    "token show": ("app",),
    "describe": ("app",),
    "get": ("pods",),
    "logs": ("app",),
    "requests": ("app",),
    "stats": ("app",),
    "compare": ("app",),
    "cost": (),
    "why": ("app",),
    "top": ("--once",),
    "status": (),
    "version": (),
    "doctor": (),
    "config show": ("autoscaler",),
    "image list": (),
    "volume create": ("data",),
    "volume list": (),
    "token create": ("ann", "--role", "view"),
    "token list": (),
    "nodegroups get": (),
    "nodegroups describe": ("group",),
    "adopt": ("deploy/shop", "--host", "shop.example.com"),
    "release": ("deploy/shop",),
    "delete": ("app",),
}
# Commands that need files or a trace instead of a system.
ALONE = {
    "replay": ("decisions.jsonl",),
    "simulate": (),
    "tune": ("--jobs", "1", "--trace", "trace.csv", "--policy", "fixed-90s"),
}
TRACE = "at_s,function,duration_s\n10,a,0.5\n110,a,0.5\n"


def with_json() -> set[str]:
    return {
        name
        for name, command in commands(main)
        for parameter in command.params
        if "--output" in parameter.opts and "json" in getattr(parameter.type, "choices", ())
    }


def is_json(text: str) -> bool:
    with contextlib.suppress(ValueError):
        json.loads(text)
        return True
    with contextlib.suppress(ValueError):
        return [json.loads(line) for line in text.splitlines()] != []
    return False


def test_json_output_of_every_command_is_valid(serving: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.yaml").write_text(f"{MANIFEST}\n---{GROUP}---{app('shop')}")
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "decisions.jsonl").symlink_to(serving.state / "decisions.jsonl")
    assert STEPS.keys() | ALONE.keys() == with_json()
    done = {name: serving(*name.split(), *words, "-o", "json") for name, words in STEPS.items()}
    done |= {name: CliRunner().invoke(main, [*name.split(), *words, "-o", "json"]) for name, words in ALONE.items()}
    done["nodegroups"] = serving("nodegroups", "-o", "json")
    assert json.loads(done["nodegroups"].stdout) == json.loads(done["nodegroups get"].stdout) != []
    serving("delete", "nodegroup/group")
    for name, result in done.items():
        assert result.exit_code == 0, (name, result.output)
        assert is_json(result.stdout), (name, result.stdout)
