"""Announced pods before an EndpointSlice lists them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.activator.queueing import readiness
from serving.activator.queueing.readiness import AnnouncedPods
from serving.activator.queueing.slices import ServedPod

KEY = ("default", "hello-00001")
OTHER = ("default", "other-00001")


def pod(address: str, name: str = "") -> ServedPod:
    return ServedPod(address=address, namespace="default", name=name or f"pod-{address}")


def test_announced_pod_is_a_candidate_until_its_deadline() -> None:
    announced_pods = AnnouncedPods()
    assert announced_pods.add(KEY, pod("a"), until_s=5.0)
    assert announced_pods.candidates(KEY, (), 4.9) == {"a": pod("a")}
    assert (
        announced_pods.next_end_s(KEY),
        announced_pods.next_end_s(OTHER),
        announced_pods.candidates(OTHER, (), 0.0),
    ) == (5.0, None, {})
    assert (announced_pods.candidates(KEY, (), 5.0), len(announced_pods), announced_pods.next_end_s(KEY)) == (
        {},
        0,
        None,
    )


@pytest.mark.parametrize("listed", [pod("a"), pod("a", "another"), pod("elsewhere", "pod-a")])
def test_slice_with_the_address_or_pod_name_ends_an_announcement(listed: ServedPod) -> None:
    announced_pods = AnnouncedPods()
    announced_pods.add(KEY, pod("a"), until_s=5.0)
    announced_pods.add(KEY, pod("b"), until_s=5.0)
    assert announced_pods.candidates(KEY, [listed], 0.0) == {"b": pod("b")}
    assert announced_pods.candidates(KEY, (), 0.0) == {"b": pod("b")}, "it does not come back"


def test_change_is_pending_until_candidates_are_read() -> None:
    announced_pods = AnnouncedPods()
    assert not announced_pods.has_changed(KEY, 0.0)
    announced_pods.add(KEY, pod("a"), until_s=5.0)
    assert announced_pods.has_changed(KEY, 0.0)
    announced_pods.candidates(KEY, (), 0.0)
    assert [announced_pods.has_changed(KEY, now_s) for now_s in (0.0, 5.0)] == [False, True]


def test_second_announcement_of_an_address_replaces_the_first() -> None:
    announced_pods = AnnouncedPods()
    announced_pods.add(KEY, pod("a"), until_s=5.0)
    announced_pods.add(KEY, pod("a", "new"), until_s=7.0)
    assert (len(announced_pods), announced_pods.candidates(KEY, (), 6.0)) == (1, {"a": pod("a", "new")})


def test_announcements_are_dropped_with_their_revision_or_at_their_deadline() -> None:
    announced_pods = AnnouncedPods()
    announced_pods.add(KEY, pod("a"), until_s=5.0)
    announced_pods.add(OTHER, pod("b"), until_s=6.0)
    announced_pods.forget(KEY)
    assert (len(announced_pods), announced_pods.candidates(KEY, (), 0.0)) == (1, {})
    announced_pods.forget_ended(6.0)
    assert len(announced_pods) == 0


def test_announced_pods_of_all_revisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_PODS_MAX", 2)
    announced_pods = AnnouncedPods()
    assert [announced_pods.add(KEY, pod(name), until_s=5.0) for name in ("a", "b", "c", "a")] == [
        True,
        True,
        False,
        True,
    ]
    assert not announced_pods.add(OTHER, pod("d"), until_s=5.0)
    assert announced_pods.next_end_s(OTHER) is None


@given(
    st.lists(
        st.tuples(st.sampled_from([KEY, OTHER]), st.sampled_from("abc"), st.floats(0, 9), st.booleans()), max_size=30
    )
)
def test_announced_pod_count_equals_the_candidates_of_all_revisions(
    steps: list[tuple[tuple[str, str], str, float, bool]],
) -> None:
    announced_pods = AnnouncedPods()
    for key, address, at_s, is_add in steps:
        if is_add:
            announced_pods.add(key, pod(address), until_s=at_s)
        else:
            announced_pods.candidates(key, [pod(address)], at_s)
        assert len(announced_pods) == sum(len(announced_pods.candidates(pair, (), -1.0)) for pair in (KEY, OTHER))
