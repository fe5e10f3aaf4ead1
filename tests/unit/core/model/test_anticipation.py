"""The annotation with the anticipated number of pods."""

import pytest

from serving.core.model.anticipation import AnticipatedPods, anticipated_pods_of
from serving.core.model.knative import ANTICIPATED_PODS_ANNOTATION


def test_annotation_has_pod_count_and_expiry_in_whole_seconds() -> None:
    pods = AnticipatedPods(count=8, until_s=1_700_000_000.4)
    assert pods.text() == '{"count":8,"untilS":1700000000}'
    expected = AnticipatedPods(count=8, until_s=1_700_000_000.0)
    assert anticipated_pods_of({ANTICIPATED_PODS_ANNOTATION: pods.text()}) == expected


@pytest.mark.parametrize("text", ["", "8", '{"count":8}', "{", '{"count":"many","untilS":1}'])
def test_invalid_annotation_is_ignored(text: str) -> None:
    assert anticipated_pods_of({ANTICIPATED_PODS_ANNOTATION: text}) is None


def test_object_without_annotation_anticipates_no_pods() -> None:
    assert anticipated_pods_of({}) is None
