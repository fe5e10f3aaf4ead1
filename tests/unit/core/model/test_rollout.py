"""The state of gradual rollouts in an annotation."""

import pytest

from serving.core.model.knative import ROLLOUT_ANNOTATION
from serving.core.model.rollout import (
    ConfigurationRollout,
    RevisionShare,
    Rollout,
    StepParameters,
    read_rollout,
    split_digest,
    tag_splits,
    write_rollout,
)


def a_target(*shares: int, tag: str = "", percent: int | None = None) -> ConfigurationRollout:
    return ConfigurationRollout(
        configuration_name="hello",
        tag=tag,
        percent=sum(shares) if percent is None else percent,
        revisions=tuple(
            RevisionShare(revision_name=f"hello-0000{number}", percent=share)
            for number, share in enumerate(shares, start=1)
        ),
        step_params=StepParameters(start_time_ns=1, next_step_time_ns=2, step_duration_ns=3, step_size=4),
    )


def test_annotation_has_field_names_of_knative() -> None:
    text = write_rollout(Rollout(configurations=(a_target(99, 1, tag="new"),)))
    assert text == (
        '{"configurations":[{"configurationName":"hello","percent":100,"tag":"new",'
        '"revisions":[{"revisionName":"hello-00001","percent":99},{"revisionName":"hello-00002","percent":1}],'
        '"stepParams":{"starttime":1,"nextStepTime":2,"stepDuration":3,"stepSize":4}}]}'
    )


def test_rollout_round_trips_through_annotation() -> None:
    rollout = Rollout(configurations=(a_target(30, 20), a_target(99, 1, tag="new")))
    assert read_rollout({ROLLOUT_ANNOTATION: write_rollout(rollout)}) == rollout


@pytest.mark.parametrize("text", ["", "{", "[]", '{"configurations": [{}]}'])
def test_invalid_annotation_is_empty_state(text: str) -> None:
    assert read_rollout({ROLLOUT_ANNOTATION: text}) == Rollout()


def test_route_without_annotation_has_empty_state() -> None:
    assert read_rollout({}) == Rollout()
    assert tag_splits({}) == {}


@pytest.mark.parametrize(
    "target", [a_target(50, 51), a_target(60, percent=50), a_target(-1, 101), a_target(40, 10, tag="new")]
)
def test_inconsistent_state_is_discarded(target: ConfigurationRollout) -> None:
    annotations = {ROLLOUT_ANNOTATION: write_rollout(Rollout(configurations=(target,)))}
    assert read_rollout(annotations) == Rollout()


def test_rollout_is_done_when_each_target_has_one_revision() -> None:
    assert Rollout(configurations=(a_target(100), a_target(100, tag="new"))).is_done
    assert not Rollout(configurations=(a_target(100), a_target(99, 1, tag="new"))).is_done


def test_only_tags_with_several_revisions_have_a_split() -> None:
    rollout = Rollout(configurations=(a_target(99, 1), a_target(100, tag="done"), a_target(60, 40, tag="new")))
    assert tag_splits({ROLLOUT_ANNOTATION: write_rollout(rollout)}) == {
        "new": (("hello-00001", 60), ("hello-00002", 40))
    }


def test_split_digest_ignores_order_and_grouping() -> None:
    whole = split_digest([("a", 90), ("b", 10)])
    assert len(whole) == 16
    assert split_digest([("b", 10), ("a", 50), ("c", 0), ("a", 40)]) == whole


def test_different_splits_have_different_digests() -> None:
    assert len({split_digest(split) for split in ([("a", 100)], [("b", 100)], [("a", 90), ("b", 10)], [])}) == 4
