"""Builders for tests of metrics."""

from typing import Any

import msgspec

from serving.core.model.revisionnumbers import RevisionNumbers

_NUMBERS = RevisionNumbers(
    namespace="default",
    configuration="hello",
    revision="hello-00001",
    desired_count=3,
    requested_count=2,
    ready_count=1,
    is_panic=False,
    rule="stable",
)


def numbers(**changes: Any) -> RevisionNumbers:  # noqa: ANN401 - any field of the record
    """A decision for three pods, with changes."""
    return msgspec.structs.replace(_NUMBERS, **changes)
