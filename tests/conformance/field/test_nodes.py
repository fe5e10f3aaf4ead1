"""Node groups of users with silent faults.

A pod stayed pending, and a file yielded no group.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from serving.core.model.objects import condition_of
from serving.home.apiserver.effects import settings_warnings
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import CONFIG_MAP
from serving.nodes.nodegroup.facts import node_of, pod_of
from serving.nodes.nodegroup.group_memory import NodeGroupState
from serving.nodes.nodegroup.groups import group_of, groups_of_text, spec_of
from serving.nodes.nodegroup.plan import GroupPlan, IncreaseSize
from serving.nodes.nodegroup.records import CloudGroup
from serving.nodes.nodegroup.status import HAVE_ROOM, status_of
from serving.tools.cli.main import main
from tests.unit.nodes.nodegroup.builders import NOW_S
from tests.unit.nodes.nodegroup.objects import GROUP_SPEC, node_object, pod_object
from tests.unit.nodes.nodegroup.outcome import Snapshot, decide

INPUTS = Path(__file__).with_name("inputs")
FILES = sorted(INPUTS.glob("escalator_*.yaml"))


def node_with_daemon_sets() -> Snapshot:
    """A node of 1000m: DaemonSets take 250m and 200m, two pods 200m each, and one more of 200m waits."""
    node = node_object("n")
    node["status"]["allocatable"] = {"cpu": "1000m", "memory": "3Gi"}
    pods = [pod_object(f"own-{number}", on="n", cpu="200m") for number in range(2)]
    for name, cpu in (("logs", "250m"), ("metrics", "200m")):
        pods.append(pod_object(name, on="n", cpu=cpu, owner="DaemonSet"))
    pods.append(pod_object("waits", cpu="200m"))
    for pod in pods:
        pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = "1Mi"
    cloud = CloudGroup(target_size=1, min_size=0, max_size=9)
    return Snapshot(nodes=(node_of(node),), pods=tuple(map(pod_of, pods)), cloud=cloud)


def planned(**spec: Any) -> tuple[NodeGroupState, GroupPlan]:  # noqa: ANN401 - JSON
    (group,) = group_of({"metadata": {"name": "shared"}, "spec": {**GROUP_SPEC, **spec}}).groups
    return decide(NodeGroupState(), node_with_daemon_sets(), group.settings, now_s=NOW_S)


def test_pod_without_room_beside_daemon_sets_triggers_a_scale_up() -> None:
    _, plan = planned(scaleOnStarve=True)
    assert plan.effects == (IncreaseSize(count=1),)


def test_status_reports_a_starving_pod_without_scale_on_starve() -> None:
    state, plan = planned()
    assert plan.effects == ()
    cloud = CloudGroup(target_size=1, min_size=0, max_size=9)
    status = status_of(None, plan=plan, state=state, cloud=cloud, done=(), problems=(), stamp="now")
    assert status["utilization"]["cpuPercent"] == pytest.approx(60), "the usage is Escalator's"
    condition = condition_of({"status": status}, HAVE_ROOM)
    assert condition["status"] == "False"
    assert "1 pod waits for room that DaemonSets" in condition["message"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_escalator_config_file_is_read_without_problems(path: Path) -> None:
    """Each file names in its first lines the keys that Escalator ignores."""
    text = path.read_text()
    reading = groups_of_text(text, where=path.name)
    assert reading.problems == ()
    assert len(reading.groups) == len(yaml.safe_load(text)["node_groups"])
    named = [line.removeprefix("# ignored: ") for line in text.splitlines() if line.startswith("# ignored: ")]
    assert [problem.where.rpartition(": ")[2] for problem in reading.ignored] == named
    for group in reading.groups:
        shown = group_of({"metadata": {"name": group.settings.name}, "spec": spec_of(group.options)})
        assert ([written_group.settings for written_group in shown.groups], shown.ignored) == ([group.settings], ())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_ignored_escalator_keys_are_reported_by_apply_and_config_check(path: Path) -> None:
    ignored = [str(problem) for problem in groups_of_text(path.read_text(), where=path.name).ignored]
    data = {"nodegroups_config.yaml": path.read_text()}
    stored = {"metadata": {"name": "config-nodegroup", "namespace": system_namespace()}, "data": data}
    place = "config-nodegroup: nodegroups_config.yaml"
    assert settings_warnings(CONFIG_MAP, stored) == [text.replace(path.name, place) for text in ignored]
    done = CliRunner().invoke(main, ["config", "check", str(path)])
    assert done.exit_code == 0, done.output
    assert [line for line in done.stderr.splitlines() if line.startswith("warning: ")] == [
        f"warning: {text.replace(path.name, str(path))}" for text in ignored
    ]
