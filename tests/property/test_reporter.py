"""Both sources of the stats reporter hold the same rows after any decisions."""

from hypothesis import given
from hypothesis import strategies as st

from serving.net.metrics.reporter import NAMES, GaugeFamilies, Labels, opencensus_views

_LABELS = st.tuples(st.sampled_from(["default", "other"]), st.sampled_from(["", "hello"]), st.sampled_from("abc"))
_COUNTS = st.integers(min_value=0, max_value=10_000)
_RECORD = st.tuples(_LABELS, st.tuples(st.none() | _COUNTS, _COUNTS, _COUNTS, st.integers(0, 1)))
_DROP = st.tuples(_LABELS, st.none())


@given(st.lists(_RECORD | _DROP, max_size=40))
def test_opencensus_and_prometheus_sources_have_equal_rows(
    changes: list[tuple[Labels, tuple[int | None, ...] | None]],
) -> None:
    sources = (opencensus_views(), GaugeFamilies())
    for source in sources:
        for labels, values in changes:
            if values is None:
                source.drop([labels])
            else:
                source.record(labels, values)
    views, families = ([(name, sorted(rows)) for name, rows in source.pull()] for source in sources)
    assert views == families
    assert {name for name, _ in families} <= set(NAMES)
