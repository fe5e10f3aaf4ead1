"""The pod of a session."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from serving.core.traffic.policy import SessionRing, session_number, share_of

_SESSIONS = [session_number(b"session %d" % number) for number in range(2000)]
_ADDRESSES = st.sets(st.integers(0, 999).map("10.0.0.{}:8012".format), min_size=1, max_size=12)


def first(ring: SessionRing, session: int) -> str:
    return next(ring.preferred(session))


@given(_ADDRESSES, st.binary(max_size=20))
def test_each_pod_is_preferred_once_in_deterministic_order(addresses: set[str], text: bytes) -> None:
    session = session_number(text)
    order = list(SessionRing(sorted(addresses)).preferred(session))
    assert sorted(order) == sorted(addresses)
    assert order == list(SessionRing(sorted(addresses, reverse=True)).preferred(session))


@given(_ADDRESSES, st.binary(max_size=20))
def test_removal_of_any_pod_retains_order_of_others(addresses: set[str], text: bytes) -> None:
    session = session_number(text)
    order = list(SessionRing(addresses).preferred(session))
    for gone in order:
        others = [address for address in order if address != gone]
        assert list(SessionRing(others).preferred(session)) == others


def test_fifth_pod_moves_a_fifth_of_sessions() -> None:
    four = SessionRing(f"10.0.0.{number}:1" for number in range(4))
    five = SessionRing(f"10.0.0.{number}:1" for number in range(5))
    moved = [session for session in _SESSIONS if first(four, session) != first(five, session)]
    assert {first(five, number) for number in moved} == {"10.0.0.4:1"}
    assert 0.1 < len(moved) / len(_SESSIONS) < 0.3


def test_sessions_are_spread_over_pods_and_over_a_split() -> None:
    ring = SessionRing(f"10.0.0.{number}:1" for number in range(4))
    counts = Counter(first(ring, session) for session in _SESSIONS)
    assert min(counts.values()) > len(_SESSIONS) / 8
    below = [session for session in _SESSIONS if share_of(session) < 0.1]
    assert 0.07 < len(below) / len(_SESSIONS) < 0.13
    # The sessions of one side of a split still reach all pods.
    assert len({first(ring, number) for number in below}) == 4


def test_ring_without_pods_prefers_none() -> None:
    assert list(SessionRing(()).preferred(1)) == []
