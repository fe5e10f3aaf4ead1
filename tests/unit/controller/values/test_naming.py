"""Names of children."""

import pytest

from serving.controller.values.naming import child_name, deployment_name, private_service_name, revision_name


def test_children_are_named_after_their_parent() -> None:
    assert revision_name("hello", 1) == "hello-00001"
    assert deployment_name("hello-00001") == "hello-00001-deployment"
    assert private_service_name("hello-00001") == "hello-00001-private"


def test_generations_past_five_digits_keep_all_of_them() -> None:
    assert revision_name("hello", 123456) == "hello-123456"


@pytest.mark.parametrize(("length", "is_hashed"), [(52, False), (53, True), (63, True)])
def test_a_name_that_would_be_too_long_is_hashed(length: int, is_hashed: bool) -> None:
    parent = "a" * length
    name = child_name(parent, "-deployment")
    assert len(name) <= 63
    assert name.endswith("-deployment")
    assert (name != parent + "-deployment") is is_hashed


def test_long_names_that_differ_at_their_end_stay_different() -> None:
    assert child_name("a" * 62 + "b", "-private") != child_name("a" * 62 + "c", "-private")


def test_a_hashed_name_is_knatives() -> None:
    # kmeta.ChildName: the first 31 characters less the suffix, the MD5 of the parent, the suffix.
    assert child_name("a" * 63, "-private") == "a" * 23 + "b06521f39153d618550606be297466d5" + "-private"
