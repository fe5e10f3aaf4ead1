"""The node group daemon's passes over a store and a simulated cloud: scaling, deletion, errors and restarts."""

import asyncio
from typing import Any

import pytest

from serving.core.model.errors import CloudRefused, CloudUnavailable, Conflict, NotFound, NotLeading
from serving.core.model.objects import Object, name_of
from serving.net.cluster.fenced import FencedCluster
from serving.net.cluster.kinds import EVENT, NODE, NODE_GROUP, POD, POD_DISRUPTION_BUDGET
from serving.net.cluster.port import Patch, Write
from serving.nodes.nodegroup.group_memory import BreakerPhase
from serving.nodes.nodegroup.groups import groups_of_text
from serving.nodes.nodegroup.plan import GroupLimit, GroupRule
from tests.integration.nodegroup_stage import NodeGroupStage, staged_groups
from tests.unit.nodes.nodegroup.test_groups import ESCALATOR_FILE

HOUR_S = 3600.0


async def three_nodes(stage: NodeGroupStage) -> None:
    for name in ("a", "b", "c"):
        await stage.node(name)
        stage.now_s += 60


async def reasons(stage: NodeGroupStage) -> list[str]:
    return [event["reason"] for event in (await stage.cluster.list(EVENT, "default")).items]


async def test_full_group_scales_up_once_and_reports_reason() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        group_pass = await stage.run_one()
        # 12 of 12 cores: 3 * (100 - 70) / 70 = 1.3, so 2.
        assert stage.cloud.increases == [("asg", 2)]
        status = await stage.status()
        assert status["state"]["lock"]["requested_count"] == 2
        assert status["lastAction"]["what"] == ["ask the cloud for 2 nodes"]
        (event,) = (await stage.cluster.list(EVENT, "default")).items
        assert event["message"] == "ask the cloud for 2 nodes (scale-up asks for +2; cpu 100 %, memory 25 % requested)"
        again = await stage.run_one(after_s=60)
        assert (group_pass.plan.decided_by, again.plan.decided_by) == (GroupRule.SCALE_UP, GroupRule.LOCK)
        assert stage.cloud.increases == [("asg", 2)]


async def test_idle_group_taints_then_deletes_its_oldest_nodes() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        await stage.run(after_s=HOUR_S)
        assert await stage.tainted() == {"a", "b"}
        await stage.run(after_s=30)
        assert await stage.names() == {"a", "b", "c"}
        await stage.run(after_s=31)
        assert (await stage.names(), stage.cloud.groups["asg"].target_size) == ({"c"}, 1)
        assert {"NodeTainted", "NodeDeleted"} <= set(await reasons(stage))


async def test_pods_are_evicted_within_disruption_budget_before_node_deletion() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        for name in ("x", "y"):
            await stage.pod(name, on="a", cpu="100m")
        await stage.pod("daemon", on="a", owner="DaemonSet")
        budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
        await stage.cluster.create(
            POD_DISRUPTION_BUDGET, {"metadata": {"namespace": "default", "name": "budget"}, "spec": budget}
        )
        await stage.cluster.delete(POD, "default", "daemon", grace_s=0)
        await stage.pod("daemon", on="a", owner="DaemonSet")
        await stage.cluster.patch(POD, "default", "daemon", patch={"metadata": {"labels": {"app": "other"}}})
        await stage.run(after_s=HOUR_S)
        group_pass = await stage.run_one(after_s=601)
        # One pod is evicted, the budget retains the other, and the DaemonSet's pod is not evicted.
        assert (group_pass.done.evicted_count, group_pass.done.failed_nodes) == (1, {"a"})
        pods = {name_of(pod): pod for pod in (await stage.cluster.list(POD)).items}
        assert ["deletionTimestamp" in pods[name]["metadata"] for name in ("x", "y", "daemon")].count(True) == 1
        assert "deletionTimestamp" not in pods["daemon"]["metadata"]
        assert any("default/" in text and "disruption budget" in text for text in group_pass.done.problems)
        for name in ("x", "y"):
            await stage.cluster.delete(POD, "default", name, grace_s=0)
        await stage.run(after_s=10)
        assert "a" not in await stage.names()


async def test_node_with_new_pod_is_not_deleted() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        await stage.run(after_s=HOUR_S)
        await stage.run(after_s=1)
        await stage.stop()
        await stage.pod("late", on="a")
        await stage.run(after_s=61)
        assert (await stage.names(), stage.cloud.deletions) == ({"a", "c"}, [("asg", ("b",))])


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": None}},
        {"metadata": {"annotations": {"atlassian.com/no-delete": "yes"}}},
    ],
)
async def test_cordoned_untainted_or_protected_node_is_not_deleted(change: dict[str, Any]) -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        await stage.run(after_s=HOUR_S)
        await stage.run(after_s=1)
        await stage.stop()
        await stage.cluster.patch(NODE, "", "a", patch=change)
        await stage.run(after_s=61)
        assert await stage.names() == {"a", "c"}


async def test_scale_up_untaints_nodes_first() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        await stage.run(after_s=HOUR_S)
        for number in range(4):
            await stage.pod(f"p{number}", on="c")
        await stage.run(after_s=10)
        assert (await stage.tainted(), stage.cloud.increases) == ({"a"}, [])


async def test_rejected_scale_up_releases_lock_and_opens_breaker() -> None:
    async with staged_groups(scaleUpFailureThreshold=2) as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        # Only scale-ups are rejected.
        refusals = 0
        original = stage.cloud.increase

        async def refuse(_group: str, _count: int) -> None:
            nonlocal refusals
            refusals += 1
            raise CloudRefused("no capacity in any zone")

        stage.cloud.increase = refuse  # type: ignore[method-assign,assignment]
        for _ in range(5):
            await stage.run(after_s=10)
        assert refusals == 2
        assert (await stage.condition("AbleToScale"))["reason"] == "BreakerOpen"
        assert "EffectFailed" in await reasons(stage)
        stage.cloud.increase = original  # type: ignore[method-assign]
        await stage.run(after_s=601)
        assert stage.cloud.increases == [("asg", 1)]


async def test_missing_nodes_open_the_breaker_until_they_register() -> None:
    async with staged_groups(scaleUpFailureThreshold=2) as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        for _ in range(6):
            await stage.run(after_s=125)
        assert len(stage.cloud.increases) == 2
        status = await stage.status()
        assert (status["nodes"]["coming"], status["state"]["breaker"]["phase"]) == (4, "open")
        condition = await stage.condition("MachinesRegistered")
        assert (condition["status"], condition["reason"]) == ("False", "MachinesMissing")
        assert condition["message"].startswith("4 machines of the cloud are no node of this group")
        assert "MachinesMissing" in await reasons(stage)
        # The missing nodes register late.
        for name in ("d", "e", "f", "g"):
            await stage.node(name)
        await stage.run(after_s=10)
        assert (await stage.condition("MachinesRegistered"))["status"] == "True"


async def test_lock_and_breaker_survive_daemon_restart() -> None:
    async with staged_groups(scaleUpFailureThreshold=2, scaleUpRetry="10m") as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        await stage.run()
        await stage.restart()
        # Within the cool-down, only the lock prevents another request.
        locked = await stage.run_one(after_s=60)
        assert (locked.plan.decided_by, len(stage.cloud.increases)) == (GroupRule.LOCK, 1)
        for _ in range(4):
            await stage.restart()
            await stage.run(after_s=125)
        # Two scale-ups failed, each observed by another process; the breaker stays open across restarts.
        assert len(stage.cloud.increases) == 2
        # The state also survives a restart of the local store, whose journal does not contain statuses.
        await stage.cluster.patch(NODE_GROUP, "", "shared", patch={"status": {"state": None}}, subresource="status")
        await stage.restart()
        later_pass = await stage.run_one(after_s=10)
        assert later_pass.state.breaker.phase is BreakerPhase.OPEN
        assert GroupLimit.BREAKER in later_pass.plan.limits


async def test_nodes_without_labels_do_not_belong_to_the_group() -> None:
    async with staged_groups(scaleUpFailureThreshold=1) as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        await stage.run()
        for name in ("d", "e"):
            await stage.node(name)
            await stage.cluster.patch(NODE, "", name, patch={"metadata": {"labels": None}})
        await stage.run(after_s=125)
        assert (await stage.status())["nodes"] == {
            "total": 3, "untainted": 3, "tainted": 0, "forceTainted": 0, "cordoned": 0, "coming": 2,
        }  # fmt: skip
        assert (await stage.condition("AbleToScale"))["reason"] == "BreakerOpen"


async def test_missing_node_is_requested_again_after_cool_down() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        await stage.run()
        await stage.node("d")
        # The cloud cancelled the second node.
        group = stage.cloud.groups["asg"]
        stage.cloud.groups["asg"] = type(group)(target_size=4, min_size=0, max_size=10)
        group_pass = await stage.run_one(after_s=125)
        assert (group_pass.plan.decided_by, stage.cloud.increases[1:]) == (GroupRule.SCALE_UP, [("asg", 1)])


async def test_unavailable_cloud_stops_its_group_and_is_reported() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        stage.cloud.faults.append(CloudUnavailable("throttled: Rate exceeded"))
        assert await stage.run(after_s=HOUR_S) == []
        condition = await stage.condition("CloudReachable")
        assert (condition["status"], condition["reason"], condition["message"]) == (
            "False",
            "CloudUnavailable",
            "throttled: Rate exceeded",
        )
        assert await stage.tainted() == set()
        await stage.run(after_s=60)
        assert (await stage.condition("CloudReachable"))["status"] == "True"
        assert await stage.tainted() == {"a", "b"}


@pytest.mark.parametrize("has_acted", [True, False])
async def test_scale_up_without_response_is_repeated_only_if_it_had_no_effect(has_acted: bool) -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        original = stage.cloud.increase

        async def silent(group: str, count: int) -> None:
            if has_acted:
                await original(group, count)
            raise CloudUnavailable("no answer in time")

        stage.cloud.increase = silent  # type: ignore[method-assign]
        await stage.run()
        stage.cloud.increase = original  # type: ignore[method-assign]
        await stage.run(after_s=10)
        assert stage.cloud.increases == [("asg", 2)]
        assert stage.cloud.groups["asg"].target_size == 5


async def test_machine_of_another_group_is_reported_and_its_node_is_retained() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        stage.cloud.unknown_machines = {"a"}
        await stage.run(after_s=HOUR_S)
        group_pass = await stage.run_one(after_s=61)
        assert (await stage.names(), group_pass.done.failed_nodes) == ({"a", "c"}, {"a"})
        assert group_pass.done.problems == ["delete node a: not in group asg"]


async def test_lost_lease_prevents_writes_and_cloud_requests() -> None:
    async with staged_groups() as stage:

        def lost() -> None:
            raise NotLeading("nodegroup")

        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        stage.check, stage.through = lost, FencedCluster(stage.cluster, lost)
        await stage.restart()
        with pytest.raises(NotLeading):
            await stage.run()
        assert (stage.cloud.increases, await stage.status()) == ([], {})


async def test_restarted_daemon_continues_from_status() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        await stage.run()
        await stage.restart()
        group_pass = await stage.run_one(after_s=10)
        assert (group_pass.plan.decided_by, stage.cloud.increases) == (GroupRule.LOCK, [("asg", 2)])


async def test_nodes_already_requested_are_not_requested_again_without_status() -> None:
    async with staged_groups(target=5) as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        group_pass = await stage.run_one()
        assert (group_pass.plan.decided_by, stage.cloud.increases) == (GroupRule.LOCK, [])


async def test_taint_is_retried_after_a_conflict() -> None:
    async with staged_groups(fastNodeRemovalRate=1) as stage:
        await three_nodes(stage)
        original, conflicts = stage.cluster.write, 0

        async def contested(write: Write) -> Object:
            nonlocal conflicts
            if isinstance(write, Patch) and write.kind == NODE and not conflicts:
                conflicts += 1
                raise Conflict("the object has been modified")
            return await original(write)

        stage.cluster.write = contested  # type: ignore[method-assign]
        await stage.run(after_s=HOUR_S)
        assert (await stage.tainted(), conflicts) == ({"a"}, 1)


async def test_dry_run_group_writes_only_its_status() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        stage.is_dry = True
        await stage.run(after_s=HOUR_S)
        await stage.run(after_s=HOUR_S)
        assert (await stage.tainted(), await stage.names(), stage.cloud.deletions) == (set(), {"a", "b", "c"}, [])
        assert (await stage.status())["lastPass"]["withheld"] == ["delete nodes a, b"]


async def test_groups_of_config_map_are_shown_as_node_groups() -> None:
    async with staged_groups(group=False) as stage:
        await three_nodes(stage)
        stage.reading = groups_of_text(ESCALATOR_FILE, where="file")
        await stage.run()
        await stage.run()
        assert (await stage.status())["nodes"]["total"] == 3
        await stage.cluster.patch(NODE_GROUP, "", "shared", patch={"spec": {"maxNodes": 99}})
        await stage.run()
        assert (await stage.cluster.get(NODE_GROUP, "", "shared"))["spec"]["maxNodes"] == 10
        stage.reading = groups_of_text("", where="file")
        await stage.run()
        with pytest.raises(NotFound):
            await stage.status()


async def test_node_group_takes_precedence_over_config_map() -> None:
    async with staged_groups(maxNodes=4) as stage:
        await three_nodes(stage)
        stage.reading = groups_of_text(ESCALATOR_FILE, where="file")
        group_pass = await stage.run_one()
        assert group_pass.settings.max_nodes == 4


async def test_every_problem_of_node_group_is_in_its_condition() -> None:
    async with staged_groups(minNodes=20, softDeleteGracePeriod="never", colour="red") as stage:
        assert await stage.run() == []
        condition = await stage.condition("Ready")
        assert (condition["status"], condition["reason"]) == ("False", "SettingsInvalid")
        for key in ("colour", "softDeleteGracePeriod", "minNodes"):
            assert f"NodeGroup shared: spec: {key}" in condition["message"]


async def test_invalid_group_of_config_map_is_shown_with_its_problems() -> None:
    async with staged_groups(group=False) as stage:
        await three_nodes(stage)
        stage.reading = groups_of_text(ESCALATOR_FILE.replace("min_nodes: 1", "min_nodes: 20"), where="file")
        assert await stage.run() == []
        condition = await stage.condition("Ready")
        assert (condition["status"], condition["reason"]) == ("False", "SettingsInvalid")
        assert "min_nodes 20 is not at most max_nodes 10" in condition["message"]
        stage.reading = groups_of_text(ESCALATOR_FILE, where="file")
        await stage.run()
        assert (await stage.condition("Ready"))["status"] == "True"


async def test_ignored_key_of_config_map_is_in_condition_and_event() -> None:
    async with staged_groups(group=False) as stage:
        await three_nodes(stage)
        unknown = ESCALATOR_FILE.replace("    aws:", "    scale_up_cool_down_timeout: 10m\n    aws:")
        stage.reading = groups_of_text(unknown, where="file")
        (group_pass,) = await stage.run()
        assert group_pass.settings.max_nodes == 10
        condition = await stage.condition("KeysKnown")
        assert (condition["status"], condition["reason"]) == ("False", "KeysIgnored")
        assert "scale_up_cool_down_timeout" in condition["message"]
        assert "KeysIgnored" in await reasons(stage)
        stage.reading = groups_of_text(ESCALATOR_FILE, where="file")
        await stage.run()
        assert (await stage.condition("KeysKnown"))["status"] == "True"


async def test_own_writes_are_visible_before_the_watch_delivers_them() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        await stage.run(after_s=HOUR_S)
        await stage.stop()
        group_pass = await stage.run_one(after_s=1)
        assert len(group_pass.plan.nodes.tainted) == 2
        await asyncio.sleep(0)
