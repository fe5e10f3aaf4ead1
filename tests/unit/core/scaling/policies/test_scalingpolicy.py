"""ScalingPolicySpec: valid manifests, and messages for others."""

import msgspec
import pytest

from serving.core.model.quantity import Resources
from serving.core.scaling.policies.scalingpolicy import (
    Direction,
    ScalingPolicySpec,
    TargetRef,
    Trigger,
    check_scaling_policy,
    limit_percent_of,
    type_of_today,
)

KNOWN = ("cpu", "fixed-step", "mem", "occupancy")


def trigger(kind: str = "occupancy", usage: int = 70, *, delta: int = 0, limit: int | None = None) -> Trigger:
    return Trigger(type=kind, usage_percent=usage, delta=delta, limit_percent=limit)


def policy(up: tuple[Trigger, ...] = (), down: tuple[Trigger, ...] = ()) -> ScalingPolicySpec:
    return ScalingPolicySpec(up=Direction(triggers=up), down=Direction(triggers=down))


def wrong(spec: ScalingPolicySpec, requests: dict[str, Resources] | None = None) -> list[str]:
    return [problem.where for problem in check_scaling_policy(spec, known_types=KNOWN, container_requests=requests)]


def test_manifest_is_decoded_with_percents_and_seconds() -> None:
    spec = msgspec.json.decode(
        b"""{"min": 100, "max": 1000,
             "up": {"cooldownSeconds": 300, "triggers": [
               {"type": "occupancy", "thresholdPercent": 80, "usagePercent": 70, "timeSeconds": 600, "limitPercent": 95}]},
             "down": {"cooldownSeconds": 300, "triggers": [{"type": "cpu", "usagePercent": 50, "timeSeconds": 900}]}}""",
        type=ScalingPolicySpec,
    )
    assert spec == ScalingPolicySpec(
        min_count=100,
        max_count=1000,
        up=Direction(
            cooldown_s=300,
            triggers=(Trigger(type="occupancy", usage_percent=70, threshold_percent=80, time_s=600, limit_percent=95),),
        ),
        down=Direction(cooldown_s=300, triggers=(Trigger(type="cpu", usage_percent=50, time_s=900),)),
    )


def test_unknown_field_is_rejected_with_its_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"usage.*\$\.up\.triggers\[0\]"):
        msgspec.json.decode(b'{"up": {"triggers": [{"usage": 70}]}}', type=ScalingPolicySpec)


def test_policy_of_several_types_has_no_problems() -> None:
    assert wrong(policy(up=(trigger("occupancy"), trigger("mem")), down=(trigger("cpu", 50),))) == []


def test_policy_with_only_min_and_max_has_no_problems() -> None:
    assert wrong(ScalingPolicySpec(min_count=2, max_count=2)) == []


def test_limit_defaults_to_90_percent() -> None:
    assert (limit_percent_of(trigger()), limit_percent_of(trigger(limit=150))) == (90, 150)


def test_all_problems_are_listed() -> None:
    bad = Trigger(type="rooms", usage_percent=0, threshold_percent=101, time_s=0, limit_percent=0)
    spec = ScalingPolicySpec(
        min_count=-1, max_count=-1, up=Direction(triggers=(bad,), cooldown_s=-1, delta=0), down=Direction()
    )
    assert wrong(spec) == [
        "spec.min",
        "spec.max",
        "spec.up.cooldownSeconds",
        "spec.up.delta",
        "spec.up.triggers[0].type",
        "spec.up.triggers[0].usagePercent",
        "spec.up.triggers[0].thresholdPercent",
        "spec.up.triggers[0].timeSeconds",
        "spec.up.triggers[0].limitPercent",
    ]


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (Trigger(usage_percent=101, limit_percent=200), "usagePercent"),
        (Trigger(usage_percent=70, threshold_percent=0), "thresholdPercent"),
        (Trigger(usage_percent=70, time_s=86_401), "timeSeconds"),
        (Trigger(usage_percent=70, limit_percent=1001), "limitPercent"),
    ],
)
def test_upper_and_lower_bounds_of_fields_are_checked(bad: Trigger, field: str) -> None:
    assert wrong(policy(up=(bad,))) == [f"spec.up.triggers[0].{field}"]


def test_problem_has_expected_value() -> None:
    (problem,) = check_scaling_policy(policy(up=(trigger("rooms"),)), known_types=KNOWN)
    assert str(problem) == (
        "spec.up.triggers[0].type: 'rooms' is not a type of trigger here; expected cpu or fixed-step or mem or occupancy"
    )


def test_max_count_must_not_be_negative() -> None:
    (problem,) = check_scaling_policy(ScalingPolicySpec(max_count=-1), known_types=KNOWN)
    assert problem.expected == "0 or more"


def test_min_above_max_is_rejected() -> None:
    assert wrong(ScalingPolicySpec(min_count=3, max_count=2)) == ["spec.min"]


def test_max_0_does_not_bound_min() -> None:
    assert wrong(ScalingPolicySpec(min_count=3, max_count=0)) == []


@pytest.mark.parametrize(("count", "fields"), [(16, []), (17, ["spec.up.triggers"])])
def test_more_than_16_triggers_are_rejected(count: int, fields: list[str]) -> None:
    assert wrong(policy(up=(trigger(),) * count)) == fields


def test_limit_below_usage_is_rejected() -> None:
    assert wrong(policy(up=(trigger(usage=70, limit=60),))) == ["spec.up.triggers[0].limitPercent"]


def test_default_limit_below_usage_is_rejected() -> None:
    assert wrong(policy(up=(trigger(usage=95),))) == ["spec.up.triggers[0].limitPercent"]


def test_limit_of_down_trigger_is_rejected() -> None:
    assert wrong(policy(down=(trigger(usage=50, limit=90),))) == ["spec.down.triggers[0].limitPercent"]


def test_fixed_step_delta_must_have_sign_of_its_direction() -> None:
    spec = policy(up=(trigger("fixed-step", delta=-1),), down=(trigger("fixed-step", 50, delta=1),))
    assert wrong(spec) == ["spec.up.triggers[0].delta", "spec.down.triggers[0].delta"]


def test_fixed_step_delta_must_not_be_0() -> None:
    assert wrong(policy(up=(trigger("fixed-step"),))) == ["spec.up.triggers[0].delta"]


def test_fixed_step_delta_with_sign_of_its_direction_is_accepted() -> None:
    assert wrong(policy(up=(trigger("fixed-step", delta=1),), down=(trigger("fixed-step", 50, delta=-1),))) == []


def test_down_usage_must_be_below_lowest_up_usage_of_its_type() -> None:
    spec = policy(up=(trigger(usage=60), trigger(usage=70)), down=(trigger(usage=60), trigger(usage=59)))
    (problem,) = check_scaling_policy(spec, known_types=KNOWN)
    assert (problem.where, problem.what) == (
        "spec.down.triggers[0].usagePercent",
        "60 is not below the 60 of spec.up.triggers[0]",
    )


def test_usages_of_different_types_are_not_compared() -> None:
    assert wrong(policy(up=(trigger("occupancy", 60),), down=(trigger("cpu", 80),))) == []


def test_fixed_step_and_occupancy_usages_are_compared() -> None:
    assert wrong(policy(up=(trigger("occupancy", 60),), down=(trigger("fixed-step", 80, delta=-1),))) == [
        "spec.down.triggers[0].usagePercent"
    ]


def test_old_style_trigger_is_validated() -> None:
    spec = ScalingPolicySpec(
        up=Direction(trigger=trigger("cpu", 60)), down=Direction(trigger=trigger("fixed-step", 80, limit=90))
    )
    assert wrong(spec) == [
        "spec.up.trigger.type",
        "spec.down.trigger.limitPercent",
    ]


def test_old_style_triggers_are_compared() -> None:
    spec = ScalingPolicySpec(up=Direction(trigger=trigger(usage=60)), down=Direction(trigger=trigger(usage=80)))
    assert wrong(spec) == ["spec.down.trigger.usagePercent"]


@pytest.mark.parametrize("panic_scale", [False, True])
def test_old_style_up_trigger_with_list_requires_panic_scale(*, panic_scale: bool) -> None:
    up = Direction(triggers=(trigger(),), trigger=trigger())
    spec = ScalingPolicySpec(up=up, panic_scale=panic_scale)
    assert wrong(spec) == ([] if panic_scale else ["spec.up.trigger"])


def test_old_style_down_trigger_with_list_is_rejected() -> None:
    spec = ScalingPolicySpec(down=Direction(triggers=(trigger(usage=50),), trigger=trigger(usage=50)))
    assert wrong(spec) == ["spec.down.trigger"]


def test_cpu_and_mem_require_requests_on_every_container() -> None:
    requests = {"app": Resources(cpu_m=500), "sidecar": Resources(memory_bytes=1024, cpu_m=0)}
    spec = policy(up=(trigger("cpu"), trigger("occupancy")), down=(trigger("mem", 50),))
    problems = check_scaling_policy(spec, known_types=KNOWN, container_requests=requests)
    assert [(problem.where, problem.what) for problem in problems] == [
        ("spec.up.triggers[0].type", "cpu needs requests.cpu, which container sidecar lacks"),
        ("spec.down.triggers[0].type", "mem needs requests.memory, which container app lacks"),
    ]


def test_unknown_requests_are_not_checked() -> None:
    assert wrong(policy(up=(trigger("cpu"),)), None) == []


def test_former_type_names_are_mapped_to_present_names() -> None:
    spelled = [trigger(kind).type for kind in ("room", "legacy", "cpu")]
    assert spelled == ["occupancy", "fixed-step", "cpu"]
    assert [type_of_today(kind) for kind in ("room", "cpu")] == ["occupancy", "cpu"]


def test_unnamed_schedule_is_shown_by_its_times() -> None:
    spec = msgspec.json.decode(
        b'{"schedules": [{"start": "0 8 * * *", "end": "0 9 * * *", "min": 2, "timeZone": "Asia/Tokyo"}]}',
        type=ScalingPolicySpec,
    )
    (schedule,) = spec.schedules
    assert (schedule.min_count, schedule.time_zone) == (2, "Asia/Tokyo")
    assert schedule.shown_name == "0 8 * * * to 0 9 * * *"
    assert msgspec.structs.replace(schedule, name="morning").shown_name == "morning"


@pytest.mark.parametrize(
    ("target", "where"),
    [
        (TargetRef(kind="Revision", name="r"), []),
        (TargetRef(kind="Pod", name="r"), ["spec.targetRef.kind"]),
        (TargetRef(kind="Service", name="s", api_version="v1"), ["spec.targetRef.apiVersion"]),
        (TargetRef(kind="Service", name=""), ["spec.targetRef.name"]),
    ],
)
def test_target_ref_is_validated_per_field(target: TargetRef, where: list[str]) -> None:
    spec = msgspec.structs.replace(policy(up=(trigger(),)), target_ref=target)
    assert [text for text in wrong(spec) if "targetRef" in text] == where
