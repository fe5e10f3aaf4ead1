import msgspec

from serving.core.scaling.revision import group_of
from tests.unit.core.scaling.policy_builders import revision


def test_revisions_of_one_configuration_belong_together() -> None:
    first, second = revision("hello-00001"), revision("hello-00002")
    assert group_of(first.key, first) == group_of(second.key, second) == ("default", "hello")


def test_one_of_no_configuration_and_one_that_is_not_known_stand_alone() -> None:
    alone = msgspec.structs.replace(revision("bare"), configuration="")
    assert group_of(alone.key, alone) == ("default", "bare")
    assert group_of(("default", "unknown-00001"), None) == ("default", "unknown-00001")
