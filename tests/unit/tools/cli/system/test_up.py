import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from serving.core.model.errors import SettingsError
from serving.home.state import StateFolder
from serving.tools.cli.main import main
from serving.tools.cli.system.publicflags import PublicFlags, with_public_flags
from serving.tools.cli.system.up import check_environment, path_lines, start_in_background


def test_invalid_environment_variables_are_reported_with_expected_values() -> None:
    with pytest.raises(SettingsError) as caught:
        check_environment(
            {
                "SERVING_CONTROLLER_PUBLIC_PORT": "abc",
                "SERVING_CONTROLLER_PUBLIC_PRT": "80",
                "SERVING_AUTOSCALER_STABLE_WINDOW_S": "soon",
                "SERVING_DASHBOARD_CONNECTIONS_MAX": "10",
            }
        )
    texts = sorted(str(problem) for problem in caught.value.problems)
    assert len(texts) == 3
    assert "SERVING_AUTOSCALER_STABLE_WINDOW_S" in texts[0]
    assert "'soon' is not right; expected a duration from 6s to 1h" in texts[0]
    assert "SERVING_CONTROLLER_PUBLIC_PORT: public_port: 'abc' is not right; expected a whole number" in texts[1]
    assert (
        "SERVING_CONTROLLER_PUBLIC_PRT: controller has no such setting; expected a known name; did you mean "
        "SERVING_CONTROLLER_PUBLIC_PORT?" in texts[2]
    )


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PATH": "/bin", "SERVING_POD_NAME": "p", "SERVING_ACTIVATOR_COUNT": "2"},
        {"SERVING_AUTOSCALER_STABLE_WINDOW_S": "20"},
        # The certificates come from a flag or a ConfigMap.
        {"SERVING_ACTIVATOR_HTTP_PROTOCOL": "Redirected"},
    ],
)
def test_valid_environment_passes_the_check(environment: dict[str, str]) -> None:
    check_environment(environment)


def test_silent_exit_of_the_background_process_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert start_in_background([], tmp_path / "logs") == 1
    assert f"wrote nothing to {tmp_path}/logs/up.log: make sure that its disk is not full" in capsys.readouterr().err


def test_full_disk_is_reported_with_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: StateFolder) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(StateFolder, "lock", fail)
    done = CliRunner().invoke(main, ["up", "--state", str(tmp_path)])
    assert f"{tmp_path}: No space left on device" in done.output


def make_program(folder: Path) -> Path:
    folder.mkdir(parents=True)
    program = folder / "serving"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def test_program_on_path_prints_no_path_advice(tmp_path: Path) -> None:
    program = make_program(tmp_path / "bin")
    assert path_lines(program, tmp_path / "bin" / "python", f"/nowhere:{tmp_path / 'bin'}") == []


def test_program_not_on_path_is_reported_with_an_export_command(tmp_path: Path) -> None:
    program = make_program(tmp_path / "a venv" / "bin")
    make_program(tmp_path / "other")
    (line,) = path_lines(program, tmp_path / "python", str(tmp_path / "other"))
    assert f"'{program}' is not on PATH: export PATH='{program.parent}':$PATH" in line


def test_program_beside_the_interpreter_is_suggested_for_a_module_run(tmp_path: Path) -> None:
    program = make_program(tmp_path / "bin")
    (line,) = path_lines(Path("/src/serving/__main__.py"), program.with_name("python"), "")
    assert str(program) in line
    (line,) = path_lines(Path("/src/serving/__main__.py"), tmp_path / "python", "")
    assert line.endswith(f"{tmp_path / 'python'} -m serving ...")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--public", "203.0.113.5"], "--public: '203.0.113.5' is not a domain; expected a domain such as example.com"),
        (["--public", "localhost"], "for a trial, 203-0-113-5.sslip.io is 203.0.113.5"),
        (["--public", "Example_com.org"], "'Example_com.org' is not a domain"),
        (["--acme"], "--acme: certificates are for public hosts; expected --public DOMAIN too"),
        (
            ["--public", "a.example", "--acme", "http://x/dir"],
            "--acme: 'http://x/dir' is not an https URL; expected a direct",
        ),
        (["--public", "a.example", "--acme", "https://[x"], "'https://[x' is not an https URL"),
    ],
)
def test_invalid_public_flags_are_rejected_with_advice(tmp_path: Path, options: list[str], problem: str) -> None:
    result = CliRunner().invoke(main, ["up", "--state", str(tmp_path / "state"), *options])
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert problem in result.stderr


def test_public_flag_defaults_to_port_80_and_sets_the_environment(tmp_path: Path) -> None:
    @click.command()
    @click.option("--public-port", default=8080)
    @click.option("--tls-port", default=8443)
    @with_public_flags
    def command(**options: Any) -> None:  # noqa: ANN401 - options
        flags = PublicFlags.from_options(options)
        click.echo(flags.ports({"public": options["public_port"], "tls": options["tls_port"], "api": 6080}))
        click.echo(json.dumps(flags.environment(StateFolder(tmp_path))))

    result = CliRunner().invoke(command, ["--public", "a.example", "--tls-port", "1"])
    ports, environment = result.stdout.splitlines()
    assert ports == "{'public': 80, 'tls': 1, 'api': 6080}"
    assert json.loads(environment) == {"SERVING_CONTROLLER_DOMAIN": "a.example"}
    assert CliRunner().invoke(command, []).stdout == "{'public': 8080, 'tls': 8443, 'api': 6080}\n{}\n"
    environment = CliRunner().invoke(command, ["--public", "a.example", "--acme"]).stdout.splitlines()[1]
    check_environment(json.loads(environment))
    assert json.loads(environment)["SERVING_ACME_DIRECTORY"] == "https://acme-v02.api.letsencrypt.org/directory"
