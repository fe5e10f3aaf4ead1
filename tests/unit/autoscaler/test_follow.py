import pytest

from serving.autoscaler.follow import Followers, FollowRequest, asked, wish_of

HELLO = ("default", "hello-00001")


def test_who_follows_a_revision_hears_of_it_only() -> None:
    followers, heard = Followers(), list[bytes]()

    def hear(data: bytes) -> bool:
        heard.append(data)
        return True

    followers.add(FollowRequest(key=HELLO), hear)
    followers.tell("decision", HELLO, b"{}")
    followers.tell("decision", ("default", "other"), b"{}")
    assert heard == [b"event: decision\ndata: {}\n\n"]


@pytest.mark.parametrize(
    ("names", "event", "key", "expected"),
    [
        ({}, "decision", HELLO, True),
        ({}, "sample", HELLO, False),
        ({"samples": ""}, "sample", HELLO, True),
        ({"namespace": "other"}, "decision", HELLO, False),
        ({"namespace": "default"}, "decision", HELLO, True),
        ({"revision": "hello-00001"}, "decision", HELLO, True),
        ({"revision": "hello-00002", "namespace": "default"}, "decision", HELLO, False),
    ],
)
def test_a_query_says_what_is_wanted(names: dict[str, str], event: str, key: tuple[str, str], expected: bool) -> None:
    assert wish_of(names).lets_through(event, key) is expected


def test_who_has_no_room_is_dropped_and_who_ends_hears_nothing() -> None:
    followers, heard = Followers(), list[bytes]()
    followers.add(FollowRequest(samples=True), lambda data: bool(heard.append(data)))  # type: ignore[func-returns-value]
    end = followers.add(FollowRequest(), bool)
    assert (len(followers), followers.want_samples) == (2, True)
    followers.tell("sample", HELLO, b"1")
    followers.tell("sample", HELLO, b"2")
    assert heard == [b"event: sample\ndata: 1\n\n"]
    end()
    end()
    assert (len(followers), followers.want_samples, repr(followers)) == (0, False, "Followers(0)")


def test_a_name_that_comes_twice_is_not_believed() -> None:
    assert asked("/stats?pod=a&x=&revision=r&pod=b") == ("/stats", {"pod": "", "x": "", "revision": "r"})
