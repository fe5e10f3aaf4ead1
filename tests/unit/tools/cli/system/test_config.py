import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from serving.tools.cli.main import main
from tests.unit.nodes.nodegroup.test_groups import ESCALATOR_FILE, named

HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config-autoscaler\ndata:\n"
FIVE_MISTAKES = f"""{HEAD}\
  stable-window: "5s"
  max-scale-up-rate: 10
  pannic-window-percentage: "10"
  enable-scale-to-zero: "yes"
  min-scale: "5"
  max-scale: "3"
"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "config-autoscaler.yaml"
    path.write_text(FIVE_MISTAKES)
    return path


def serving(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env={"SERVING_AUTOSCALER_MIN_SCALE": None})


def test_config_check_reports_each_mistake_in_line_order_and_exits_2(broken: Path) -> None:
    done = serving("config", "check", str(broken))
    assert done.exit_code == 2
    assert [line.removeprefix(str(broken)).split(";")[0] for line in done.stderr.splitlines()] == [
        ":6: stable-window: '5s' is not right",
        ":7: max-scale-up-rate: 10 is not text",
        ":8: config-autoscaler has no key pannic-window-percentage",
        ":9: enable-scale-to-zero: 'yes' is not right",
        ":10: min-scale 5 is above max-scale 3",
    ]


def test_printed_default_config_maps_pass_config_check(tmp_path: Path) -> None:
    assert serving("config", "defaults", "--write", str(tmp_path)).exit_code == 0
    done = serving("config", "check", *map(str, sorted(tmp_path.iterdir())))
    assert (done.exit_code, done.stdout) == (0, f"{len(list(tmp_path.iterdir()))} ConfigMaps fine\n")


def test_config_check_reports_one_config_map_in_the_singular(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(serving("config", "defaults", "config-deployment").stdout)
    assert serving("config", "check", str(path)).stdout == "1 ConfigMap fine\n"


def test_show_reports_each_value_with_its_origin(tmp_path: Path) -> None:
    (tmp_path / "config-autoscaler.yaml").write_text(HEAD + '  min-scale: "2"\n')
    done = serving(
        "config", "show", "autoscaler", "--config", str(tmp_path), "--set", "autoscaler.max_scale=7", "-o", "json"
    )
    rows = {row["field"]: row for row in json.loads(done.stdout)}
    assert rows["min_scale"]["origin"] == f"{tmp_path}/config-autoscaler.yaml:6"
    assert rows["max_scale"] == {
        "daemon": "autoscaler",
        "config_map": "config-autoscaler",
        "key": "max-scale",
        "field": "max_scale",
        "value": 7,
        "written": "7",
        "layer": "flag",
        "origin": "flag --set max_scale",
    }
    assert rows["stable_window_s"]["layer"] == "default"


def test_config_show_prints_one_line_per_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    lines = serving("config", "show").stdout.splitlines()
    assert any(line.split() == ["autoscaler", "config-autoscaler", "stable-window", "60s", "default"] for line in lines)


@pytest.mark.parametrize("columns", [80, 120, 300])
def test_config_show_fits_the_terminal_and_shortens_values_first(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = serving("config", "show").stdout.splitlines()
    assert max(map(len, lines)) == min(columns, 160)
    (template,) = (line for line in lines if "logging.request-log-template" in line)
    assert "…  default" in template
    assert any("activator-capacity " in line for line in lines)


def test_config_show_rejects_an_invalid_config_map(broken: Path) -> None:
    done = serving("config", "show", "--config", str(broken))
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 5)


def test_set_flag_without_a_known_daemon_is_reported() -> None:
    done = serving("config", "show", "--set", "scaler.min_scale=1")
    assert done.exit_code == 2
    assert "flag --set: 'scaler.min_scale=1' is not right; expected DAEMON.FIELD=VALUE" in done.stderr


def test_binary_config_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "config-x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "not readable" in serving("config", "check", str(path)).stderr


def test_config_defaults_prints_the_page_and_all_config_maps() -> None:
    assert serving("config", "defaults", "--page").stdout.startswith("# Settings\n")
    assert serving("config", "defaults").stdout.count("kind: ConfigMap\n") == len(
        {line for line in serving("config", "defaults").stdout.splitlines() if line.startswith("  name: config-")}
    )


def test_config_check_accepts_node_groups_in_each_format(tmp_path: Path) -> None:
    escalator, manifest, config_map = (tmp_path / f"{name}.yaml" for name in ("escalator", "manifest", "map"))
    escalator.write_text(ESCALATOR_FILE)
    manifest.write_text(yaml.safe_dump({"apiVersion": "serving.dev/v1alpha1", "kind": "NodeGroup", **named()}))
    metadata = {"name": "config-nodegroup"}
    data = {"nodegroups_config.yaml": ESCALATOR_FILE}
    config_map.write_text(yaml.safe_dump({"kind": "ConfigMap", "metadata": metadata, "data": data}))
    assert serving("config", "check", str(escalator)).stdout == "1 node group fine\n"
    done = serving("config", "check", str(escalator), str(manifest), str(config_map))
    assert (done.exit_code, done.stdout) == (0, "1 ConfigMap and 3 node groups fine\n")


def test_config_check_reports_node_group_problems_per_file(tmp_path: Path) -> None:
    escalator, manifest, config_map = (tmp_path / f"{name}.yaml" for name in ("escalator", "manifest", "map"))
    wrong = ESCALATOR_FILE.replace("max_nodes: 10", "max_nodes: 0").replace("dry_mode", "dry_mod")
    escalator.write_text(wrong)
    spec = {**named()["spec"], "minNodes": -1}
    manifest.write_text(
        yaml.safe_dump({"apiVersion": "serving.dev/v1alpha1", "kind": "NodeGroup", **named(), "spec": spec})
    )
    data = {"nodegroups_config.yaml": "node_groups: {}"}
    config_map.write_text(yaml.safe_dump({"kind": "ConfigMap", "metadata": {"name": "config-nodegroup"}, "data": data}))
    done = serving("config", "check", str(escalator), str(manifest), str(config_map))
    lines = done.stderr.splitlines()
    assert done.exit_code == 2
    assert [sum(line.startswith(str(path)) for line in lines) for path in (escalator, manifest, config_map)] == [1] * 3
    assert [line.endswith("dry_mode, perhaps") for line in lines if line.startswith("warning: ")] == [True]
