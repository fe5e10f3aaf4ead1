"""Which certificate a server name gets."""

from hypothesis import given
from hypothesis import strategies as st

from serving.proxy.tls.choice import CertificateChoice, Identity


def identity(name: str, *hosts: str, until_s: float = 1.0) -> Identity:
    return Identity(name=name, hosts=hosts, not_after_s=until_s)


def test_an_exact_host_comes_before_a_wildcard() -> None:
    choice = CertificateChoice([identity("wild", "*.example"), identity("one", "a.example")])
    assert [choice.find(name) for name in ("a.example", "A.Example.", "b.example")] == ["one", "one", "wild"]


def test_a_wildcard_stands_for_one_label() -> None:
    choice = CertificateChoice([identity("wild", "*.default.localhost")])
    assert choice.find("hello.default.localhost") == "wild"
    for name in ("a.b.default.localhost", "default.localhost", "localhost", ".default", ""):
        assert choice.find(name) is None


def test_without_a_default_nobody_is_nobody() -> None:
    assert CertificateChoice([identity("one", "a.example")]).find(None) is None
    assert CertificateChoice([identity("one", "a.example")], default="two").find("x") is None


def test_the_default_is_for_all_others() -> None:
    choice = CertificateChoice([identity("one", "a.example"), identity("two")], default="two")
    assert [choice.find(name) for name in ("a.example", "x", "", None)] == ["one", "two", "two", "two"]


def test_of_two_for_one_host_the_one_that_is_valid_longest_is_taken() -> None:
    old, new = identity("b-old", "a.example", "old.example"), identity("a-new", "a.example", until_s=2.0)
    for both in ([old, new], [new, old]):
        choice = CertificateChoice(both)
        assert [choice.find(name) for name in ("a.example", "old.example")] == ["a-new", "b-old"]
    equal = [identity("b", "a.example"), identity("a", "a.example")]
    assert {CertificateChoice(order).find("a.example") for order in (equal, equal[::-1])} == {"a"}


def test_it_says_what_it_has() -> None:
    choice = CertificateChoice([identity("one", "a.example", "*.b.example")], default="one")
    assert repr(choice) == "CertificateChoice(1 hosts, 1 wildcards, default one)"


labels = st.text("ab-", min_size=1, max_size=3)
names = st.lists(labels, min_size=1, max_size=4).map(".".join)


@given(st.lists(st.tuples(st.booleans(), names), max_size=6), names)
def test_whoever_is_chosen_has_the_name(hosts: list[tuple[bool, str]], asked: str) -> None:
    written = [f"*.{name}" if is_wild else name for is_wild, name in hosts]
    choice = CertificateChoice([identity(host, host) for host in written])
    parent = f"*.{asked.partition('.')[2]}"
    found = choice.find(asked)
    if asked in written:
        assert found == asked
    elif parent in written:
        assert found == parent
    else:
        assert found is None
