import msgspec

from serving.core.scaling.revision import group_of
from tests.unit.core.scaling.policy_builders import revision


def test_revisions_of_same_configuration_share_group() -> None:
    first, second = revision("hello-00001"), revision("hello-00002")
    assert group_of(first.key, first) == group_of(second.key, second) == ("default", "hello")


def test_revision_without_configuration_has_its_own_group() -> None:
    alone = msgspec.structs.replace(revision("bare"), configuration="")
    assert group_of(alone.key, alone) == ("default", "bare")
    assert group_of(("default", "unknown-00001"), None) == ("default", "unknown-00001")
