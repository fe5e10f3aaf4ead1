"""The annotation with the pods that a revision will want."""

import pytest

from serving.core.model.anticipation import AnticipatedPods, anticipated_pods_of
from serving.core.model.knative import ANTICIPATED_PODS_ANNOTATION


def test_the_annotation_says_how_many_and_until_when() -> None:
    pods = AnticipatedPods(count=8, until_s=1_700_000_000.4)
    assert pods.text() == '{"count":8,"untilS":1700000000}'
    expected = AnticipatedPods(count=8, until_s=1_700_000_000.0)
    assert anticipated_pods_of({ANTICIPATED_PODS_ANNOTATION: pods.text()}) == expected


@pytest.mark.parametrize("text", ["", "8", '{"count":8}', "{", '{"count":"many","untilS":1}'])
def test_what_cannot_be_read_says_nothing(text: str) -> None:
    assert anticipated_pods_of({ANTICIPATED_PODS_ANNOTATION: text}) is None


def test_without_the_annotation_nothing_is_anticipated() -> None:
    assert anticipated_pods_of({}) is None
