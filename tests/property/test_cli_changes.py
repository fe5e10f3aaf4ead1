"""``serving apply``, for any manifests and concurrent writes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serving.home.schemas.patch import merge_patch, same_json
from serving.tools.cli.services.apply import changed_fields, patch_between, with_last_applied

Json = dict[str, Any]

_KEYS = st.sampled_from("abcd")
_LEAVES = st.integers(0, 3) | st.booleans() | st.sampled_from(["x", "y"]) | st.lists(st.integers(0, 2), max_size=2)
_SPECS = st.recursive(
    st.dictionaries(_KEYS, _LEAVES, max_size=3), lambda inner: st.dictionaries(_KEYS, _LEAVES | inner)
)


def manifest(spec: Json) -> Json:
    return {"kind": "Service", "metadata": {"name": "a"}, "spec": spec}


def holds(fields: Any, wanted: Any) -> bool:  # noqa: ANN401 - JSON
    if not isinstance(wanted, dict):
        return same_json(fields, wanted)
    return isinstance(fields, dict) and all(
        key in fields and holds(fields[key], value) for key, value in wanted.items()
    )


@given(_SPECS, _SPECS, _SPECS)
def test_apply_sets_all_manifest_fields_and_is_idempotent(last: Json, others: Json, wanted: Json) -> None:
    live = merge_patch(with_last_applied(manifest(last)), {"spec": others})
    request_count = with_last_applied(manifest(wanted))
    after = merge_patch(live, patch_between(request_count, live))
    assert holds(after, request_count)
    assert patch_between(request_count, after) == {}
    assert changed_fields(after, after) == []


@given(_SPECS, _SPECS)
def test_apply_over_own_fields_yields_exactly_the_manifest(last: Json, wanted: Json) -> None:
    live = with_last_applied(manifest(last))
    request_count = with_last_applied(manifest(wanted))
    assert same_json(merge_patch(live, patch_between(request_count, live)), request_count)


@given(_SPECS, _SPECS)
def test_apply_preserves_fields_of_other_writers(last: Json, wanted: Json) -> None:
    live = with_last_applied(manifest(last))
    live["spec"] = {**live["spec"], "others": {"e": 1}}
    after = merge_patch(live, patch_between(with_last_applied(manifest(wanted)), live))
    assert after["spec"]["others"] == {"e": 1}
