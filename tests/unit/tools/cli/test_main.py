import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from serving.core.model.errors import Problem, SettingsError, Unavailable
from serving.tools.cli.client.resources import SecondsParam
from serving.tools.cli.main import SECTIONS, LazyGroup, main
from tests.tidy.sources import ROOT

PLACES = {name: place for section in SECTIONS.values() for name, (place, _) in section.items()}

# Commands that run code of the daemons, or are daemons.
HEAVY = {
    "arena",
    "backup",
    "exec",
    "restore",
    "up",
    "config",
    "dashboard",
    "install",
    "policy",
    "replay",
    "simulate",
    "tune",
}


@pytest.mark.parametrize("name", PLACES)
def test_every_command_of_the_table_has_help(name: str) -> None:
    done = CliRunner().invoke(main, [name, "--help"])
    assert (done.exit_code, done.output.splitlines()[0].startswith(f"Usage: main {name} ")) == (0, True)


def test_help_loads_no_command_module() -> None:
    program = "import sys; from serving.tools.cli.main import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded & {"serving.tools.cli.main", "serving.tools.cli.client.api", "msgspec", "rich", "yaml", "numpy"} == {
        "serving.tools.cli.main"
    }
    assert all(f"  {name} " in done.stdout for name in PLACES)


def test_common_commands_load_no_large_package() -> None:
    modules = sorted({PLACES[name].partition(":")[0] for name in set(PLACES) - HEAVY})
    large = {"aiohttp", "asyncio", "click.shell_completion", "kubernetes", "numpy", "uvloop"}
    # All in one process: the assertion names the first offender.
    program = (
        f"import importlib, sys\nfor name in {modules}:\n    importlib.import_module(name)\n"
        f"    assert not {large} & sys.modules.keys(), (name, {large} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_supervisor_loads_neither_asyncio_nor_a_server() -> None:
    # The supervisor stays in memory while the system runs.
    program = "import sys, serving.home.supervisor.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert set(done.stdout.split()) & {"aiohttp", "asyncio", "http.server", "numpy", "yaml"} == set()


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its words."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            yield from commands(subcommand, (*path, name))


def test_docs_list_the_commands_without_json_output() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    listed = page.partition("These commands have no `-o json`")[2].partition("\n\n")[0]
    without = set()
    for name, command in commands(main):
        types = [parameter.type for parameter in command.params if "--output" in parameter.opts]
        if not any("json" in getattr(param_type, "choices", ()) for param_type in types):
            without.add(name)
    assert set(re.findall(r"`([a-z -]+)`", listed)) == without


def test_deploy_update_and_scale_share_their_options() -> None:
    words = {
        name: {word for parameter in command.params for word in parameter.opts if word.startswith("-")}
        for name, command in commands(main)
        if name in {"deploy", "update", "scale"}
    }
    assert words["scale"] <= words["update"] & words["deploy"]
    assert words["update"] - words["deploy"] == {"--remove-env", "--clear-env"}
    assert words["deploy"] - words["update"] == {
        *("--asgi", "--build", "--fixed-port", "--preload", "--replace", "--snapshot", "--tcp-port")
    }
    scaling = {"--min", "--min-scale", "--max", "--max-scale", "--initial-scale", "--window", "--target"}
    assert scaling <= words["scale"]
    shared = {"--memory", "--cpu", "--env-file", "--secret", "--port", "--h2c", "--env", "--concurrency", "--access"}
    assert shared <= words["update"] - words["scale"]


def test_unknown_command_exits_2_and_suggests_the_nearest() -> None:
    done = CliRunner().invoke(main, ["frobnicate"])
    assert (
        done.exit_code,
        "Error: No such command 'frobnicate'. `main --help` lists the commands.\n" in done.stderr,
    ) == (2, True)
    assert "Did you mean describe?" in CliRunner().invoke(main, ["desribe"]).stderr
    assert "Did you mean serving delete NAME?" in CliRunner().invoke(main, ["destory"]).stderr
    assert "`serving config` has check, defaults, " in CliRunner().invoke(main, ["config", "frob"]).stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("port-forward x 80", "serving url NAME, or invoke NAME?"),
        ("patch x", "serving update NAME?"),
        ("revisions", "serving get services, or get revisions?"),
        ("ConfigMaps", "serving get configmaps?"),
        ("deploy x --source .", "No such option: --source; use serving deploy NAME FOLDER"),
        ("scale x --replicas 3", "No such option: --replicas; use --min COUNT --max COUNT"),
        ("dev x --min-instances 1", "No such option: --min-instances; use --min COUNT"),
        ("restart", "Error: Missing argument 'NAME'."),
    ],
)
def test_command_or_option_of_another_tool_suggests_the_equivalent(words: str, hint: str) -> None:
    done = CliRunner().invoke(main, words.split())
    assert (done.exit_code, done.stderr.splitlines()[-1].endswith(hint)) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("service list -A", "get -A"),
        ("rollout undo ksvc/shop --no-wait", "traffic shop --rollback --no-wait"),
        ("diff -f a.yaml", "apply --dry-run -f a.yaml"),
    ],
)
def test_equivalent_command_of_another_tool_is_run(words: str, command: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [*words.split(), "--state", str(tmp_path)])
    assert done.stderr.splitlines()[0] == f"running serving {command} --state {tmp_path}"
    assert "kubeconfig: no such file; start the system with `serving up`" in done.stderr


def test_dissimilar_word_has_no_suggestion() -> None:
    assert "Did you mean" not in CliRunner().invoke(main, ["frob"]).stderr
    done = CliRunner().invoke(main, ["deploy", "x", "--frob"])
    assert done.stderr.endswith("No such option: --frob; `main deploy --help` lists the options\n")


def test_install_service_error_shows_its_own_usage() -> None:
    done = CliRunner().invoke(main, ["install-service", "--dry-run"])
    assert done.exit_code == 2
    assert done.stderr.startswith("Usage: main install-service")
    assert "--print shows the unit" in done.stderr


def test_seconds_parameter_accepts_a_unit_or_seconds() -> None:
    param = SecondsParam()
    assert [param.convert(text, None, None) for text in ("90", "90s", "5m", 7)] == [90, 90, 300, 7]
    for text in ("0", "1.5", "5x", "-1s"):
        with pytest.raises(click.BadParameter, match="is not a time"):
            param.convert(text, None, None)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("two\nlines"), 1, "internal error: ValueError: two; SERVING_TRACEBACK=1 shows the traceback"),
        (
            FileNotFoundError(2, "No such file or directory", "x.txt"),
            1,
            "x.txt: No such file or directory; expected a path that exists",
        ),
        (TimeoutError(), 1, "TimeoutError"),
        (Unavailable("no answer"), 1, "no answer"),
        (SettingsError([Problem(where="a", what="b", expected="c")]), 2, "a: b; expected c"),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_unexpected_exception_is_reported_in_one_line(error: BaseException, code: int, message: str | None) -> None:
    @click.group(cls=LazyGroup)
    def group() -> None:
        """An empty command."""

    @group.command()
    def break_down() -> None:
        raise error

    done = CliRunner().invoke(group, ["break-down"])
    assert (done.exit_code, done.stderr.splitlines()) == (code, [message] if message else [])


def test_traceback_is_raised_with_serving_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.group(cls=LazyGroup)
    def group() -> None:
        """An empty command."""

    @group.command()
    def break_down() -> None:
        raise ValueError("why")

    monkeypatch.setenv("SERVING_TRACEBACK", "1")
    assert isinstance(CliRunner().invoke(group, ["break-down"]).exception, ValueError)
