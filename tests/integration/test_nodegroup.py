"""The node group daemon's passes over a store: its writes, and objects left alone."""

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


async def test_a_full_group_grows_once_and_says_why() -> None:
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


async def test_an_idle_group_taints_then_deletes_its_oldest_nodes() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        await stage.run(after_s=HOUR_S)
        assert await stage.tainted() == {"a", "b"}
        await stage.run(after_s=30)
        assert await stage.names() == {"a", "b", "c"}
        await stage.run(after_s=31)
        assert (await stage.names(), stage.cloud.groups["asg"].target_size) == ({"c"}, 1)
        assert {"NodeTainted", "NodeDeleted"} <= set(await reasons(stage))


async def test_pods_are_evicted_within_their_budget_before_their_node_goes() -> None:
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
        # One goes, the other is kept by the budget; the DaemonSet's stays.
        assert (group_pass.done.evicted_count, group_pass.done.failed_nodes) == (1, {"a"})
        pods = {name_of(pod): pod for pod in (await stage.cluster.list(POD)).items}
        assert ["deletionTimestamp" in pods[name]["metadata"] for name in ("x", "y", "daemon")].count(True) == 1
        assert "deletionTimestamp" not in pods["daemon"]["metadata"]
        assert any("default/" in text and "disruption budget" in text for text in group_pass.done.problems)
        for name in ("x", "y"):
            await stage.cluster.delete(POD, "default", name, grace_s=0)
        await stage.run(after_s=10)
        assert "a" not in await stage.names()


async def test_a_node_that_got_a_pod_since_is_not_deleted() -> None:
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
async def test_a_node_that_was_cordoned_untainted_or_protected_since_is_not_deleted(change: dict[str, Any]) -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        await stage.run(after_s=HOUR_S)
        await stage.run(after_s=1)
        await stage.stop()
        await stage.cluster.patch(NODE, "", "a", patch=change)
        await stage.run(after_s=61)
        assert await stage.names() == {"a", "c"}


async def test_growth_takes_tainted_nodes_back_first() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        await stage.run(after_s=HOUR_S)
        for number in range(4):
            await stage.pod(f"p{number}", on="c")
        await stage.run(after_s=10)
        assert (await stage.tainted(), stage.cloud.increases) == ({"a"}, [])


async def test_a_refusal_releases_the_lock_and_the_breaker_stops_asking() -> None:
    async with staged_groups(scaleUpFailureThreshold=2) as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        # The first fault is for the description, which is fine.
        refusals = 0
        real = stage.cloud.increase

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
        stage.cloud.increase = real  # type: ignore[method-assign]
        await stage.run(after_s=601)
        assert stage.cloud.increases == [("asg", 1)]


async def test_nodes_that_never_register_open_the_breaker() -> None:
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
        # They come after all.
        for name in ("d", "e", "f", "g"):
            await stage.node(name)
        await stage.run(after_s=10)
        assert (await stage.condition("MachinesRegistered"))["status"] == "True"


async def test_the_lock_and_the_breaker_survive_a_restart_of_the_daemon() -> None:
    async with staged_groups(scaleUpFailureThreshold=2, scaleUpRetry="10m") as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        await stage.run()
        await stage.restart()
        # Within the cool-down: another process would ask again without the lock.
        locked = await stage.run_one(after_s=60)
        assert (locked.plan.decided_by, len(stage.cloud.increases)) == (GroupRule.LOCK, 1)
        for _ in range(4):
            await stage.restart()
            await stage.run(after_s=125)
        # Two scale-ups failed, each seen by another process; the breaker is open for all that come.
        assert len(stage.cloud.increases) == 2
        # A restart of one machine's store, too: its journal keeps no status.
        await stage.cluster.patch(NODE_GROUP, "", "shared", patch={"status": {"state": None}}, subresource="status")
        await stage.restart()
        still = await stage.run_one(after_s=10)
        assert still.state.breaker.phase is BreakerPhase.OPEN
        assert GroupLimit.BREAKER in still.plan.limits


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


async def test_partial_growth_is_asked_for_again_after_the_cool_down() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        await stage.run()
        await stage.node("d")
        # The cloud gave up the second one.
        group = stage.cloud.groups["asg"]
        stage.cloud.groups["asg"] = type(group)(target_size=4, min_size=0, max_size=10)
        group_pass = await stage.run_one(after_s=125)
        assert (group_pass.plan.decided_by, stage.cloud.increases[1:]) == (GroupRule.SCALE_UP, [("asg", 1)])


async def test_a_cloud_that_is_away_stops_its_group_and_nothing_else() -> None:
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
async def test_growth_without_a_response_is_repeated_only_if_it_had_no_effect(has_acted: bool) -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        real = stage.cloud.increase

        async def silent(group: str, count: int) -> None:
            if has_acted:
                await real(group, count)
            raise CloudUnavailable("no answer in time")

        stage.cloud.increase = silent  # type: ignore[method-assign]
        await stage.run()
        stage.cloud.increase = real  # type: ignore[method-assign]
        await stage.run(after_s=10)
        assert stage.cloud.increases == [("asg", 2)]
        assert stage.cloud.groups["asg"].target_size == 5


async def test_a_machine_of_another_group_is_reported_and_its_node_stays() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        stage.cloud.unknown_machines = {"a"}
        await stage.run(after_s=HOUR_S)
        group_pass = await stage.run_one(after_s=61)
        assert (await stage.names(), group_pass.done.failed_nodes) == ({"a", "c"}, {"a"})
        assert group_pass.done.problems == ["delete node a: not in group asg"]


async def test_without_the_lease_nothing_is_written_and_the_cloud_is_not_asked() -> None:
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


async def test_another_process_continues_from_the_status() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        await stage.run()
        await stage.restart()
        group_pass = await stage.run_one(after_s=10)
        assert (group_pass.plan.decided_by, stage.cloud.increases) == (GroupRule.LOCK, [("asg", 2)])


async def test_nodes_on_their_way_are_not_asked_for_again_by_a_process_that_knows_nothing() -> None:
    async with staged_groups(target=5) as stage:
        await three_nodes(stage)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        group_pass = await stage.run_one()
        assert (group_pass.plan.decided_by, stage.cloud.increases) == (GroupRule.LOCK, [])


async def test_a_taint_is_tried_again_after_a_conflict() -> None:
    async with staged_groups(fastNodeRemovalRate=1) as stage:
        await three_nodes(stage)
        real, conflicts = stage.cluster.write, 0

        async def contested(write: Write) -> Object:
            nonlocal conflicts
            if isinstance(write, Patch) and write.kind == NODE and not conflicts:
                conflicts += 1
                raise Conflict("the object has been modified")
            return await real(write)

        stage.cluster.write = contested  # type: ignore[method-assign]
        await stage.run(after_s=HOUR_S)
        assert (await stage.tainted(), conflicts) == ({"a"}, 1)


async def test_a_dry_group_writes_its_status_and_nothing_else() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        stage.is_dry = True
        await stage.run(after_s=HOUR_S)
        await stage.run(after_s=HOUR_S)
        assert (await stage.tainted(), await stage.names(), stage.cloud.deletions) == (set(), {"a", "b", "c"}, [])
        assert (await stage.status())["lastPass"]["withheld"] == ["delete nodes a, b"]


async def test_groups_of_the_config_map_are_shown_as_node_groups() -> None:
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


async def test_a_node_group_goes_before_a_group_of_the_config_map_with_its_name() -> None:
    async with staged_groups(maxNodes=4) as stage:
        await three_nodes(stage)
        stage.reading = groups_of_text(ESCALATOR_FILE, where="file")
        group_pass = await stage.run_one()
        assert group_pass.settings.max_nodes == 4


async def test_every_problem_of_a_node_group_is_in_its_condition() -> None:
    async with staged_groups(minNodes=20, softDeleteGracePeriod="never", colour="red") as stage:
        assert await stage.run() == []
        condition = await stage.condition("Ready")
        assert (condition["status"], condition["reason"]) == ("False", "SettingsInvalid")
        for key in ("colour", "softDeleteGracePeriod", "minNodes"):
            assert f"NodeGroup shared: spec: {key}" in condition["message"]


async def test_a_wrong_group_of_the_config_map_is_shown_with_its_problems() -> None:
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


async def test_an_ignored_key_of_the_config_map_is_in_a_condition_and_an_event() -> None:
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


async def test_what_a_pass_wrote_is_believed_before_the_watch_brings_it() -> None:
    async with staged_groups() as stage:
        await three_nodes(stage)
        await stage.run(after_s=HOUR_S)
        await stage.stop()
        group_pass = await stage.run_one(after_s=1)
        assert len(group_pass.plan.nodes.tainted) == 2
        await asyncio.sleep(0)
