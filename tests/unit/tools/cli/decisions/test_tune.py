"""``serving tune``: cost curve, best dial position within a budget, and the recommended settings."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from serving.tools.cli.main import main


def tune(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["tune", "--jobs", "1", *arguments])


def trace(folder: Path) -> str:
    """A request every 100 s: with Knative's defaults each one is cold."""
    path = folder / "t.csv"
    path.write_text("at_s,function,duration_s\n" + "".join(f"{10 + 100 * index},a,0.5\n" for index in range(20)))
    return str(path)


def test_larger_budget_reduces_cold_requests(tmp_path: Path) -> None:
    path = trace(tmp_path)
    responses = [
        json.loads(tune("--trace", path, "--policy", "fixed-90s", "--json", "--budget", budget).stdout)
        for budget in ("100%", "300%")
    ]
    cold = [
        next(entry["cold_requests"] for entry in response["curve"] if entry["name"] == response["best"])
        for response in responses
    ]
    assert cold[0] > cold[1] == 1
    assert "scale-to-zero-pod-retention-period" in responses[1]["settings"]


def test_recommended_settings_are_printed_with_their_effect(tmp_path: Path) -> None:
    done = tune("--trace", trace(tmp_path), "--policy", "fixed-90s", "--budget", "300%")
    assert done.exit_code == 0, done.output
    assert 'scale-to-zero-pod-retention-period: "' in done.stdout
    assert "1 cold requests instead of 20" in done.stdout


def test_budget_below_all_positions_is_reported(tmp_path: Path) -> None:
    assert "costs more than 1%" in tune("--trace", trace(tmp_path), "--policy", "fixed-90s", "--budget", "1%").stdout


def test_invalid_budget_policy_or_option_is_rejected(tmp_path: Path) -> None:
    path = trace(tmp_path)
    for wrong in (("--budget", "much"), ("--policy", "none"), ("--polcy", "x")):
        assert tune("--trace", path, *wrong).exit_code == 2
    assert "--trace FILE or --from-log PATH" in tune().stderr
