"""Promtool accepts rules and the scrape configuration, and each alert fires in its case."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "config" / "monitoring"
CASES = Path(__file__).with_name("alerts_test.yaml")
PROMTOOL = shutil.which("promtool") or ""

needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="promtool is not on PATH: make system-packages")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=120)


@needs_promtool
@pytest.mark.parametrize(("what", "name"), [("rules", "alerts.yaml"), ("config", "prometheus.yaml")])
def test_promtool_accepts_rules_and_scrape_configuration(what: str, name: str, tmp_path: Path) -> None:
    shutil.copytree(MONITORING, tmp_path, dirs_exist_ok=True)
    (tmp_path / "query-token").write_text("q" * 43)
    done = promtool("check", what, str(tmp_path / name))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_each_alert_fires_in_its_promtool_case() -> None:
    done = promtool("test", "rules", str(CASES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_promtool_case() -> None:
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    firing, well = yaml.safe_load(CASES.read_text())["tests"]
    fired = [sample["labels"] for sample in firing["promql_expr_test"][0]["exp_samples"]]
    assert well["promql_expr_test"][0]["exp_samples"] == []
    assert fired == [f'{{alertname="{alert}"}}' for alert in alerts]
