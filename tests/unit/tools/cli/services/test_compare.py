import msgspec

from serving.tools.cli.services.compare import compared_lines
from serving.tools.dashboard.compare import ComparedRevision, RevisionComparison, SettingDifference

OLD = ComparedRevision(
    revision="hello-00001",
    created="",
    traffic_percent=90,
    requests=0,
    errors=0,
    p50_s=None,
    p95_s=None,
    p99_s=None,
    pods_mean=0.0,
    pod_seconds=0.0,
    gib_seconds=0.0,
    price=None,
)
NEW = ComparedRevision(
    revision="hello-00002",
    created="",
    traffic_percent=10,
    requests=400,
    errors=10,
    p50_s=0.02,
    p95_s=0.1004,
    p99_s=1.5,
    pods_mean=1.25,
    pod_seconds=375.0,
    gib_seconds=93.75,
    price=None,
)


def lines(old: ComparedRevision, new: ComparedRevision, *settings: SettingDifference) -> list[str]:
    revision_comparison = RevisionComparison(
        namespace="default", service="hello", from_s=0, to_s=300, revisions=(old, new), settings=list(settings)
    )
    return compared_lines(revision_comparison)


def test_comparison_shows_numbers_and_settings_in_columns() -> None:
    results = lines(OLD, NEW, SettingDifference(name="env KEY", older=None, newer="set"))
    assert results == [
        "             hello-00001  hello-00002",
        "traffic now  90 %         10 %",
        "requests     0            400",
        "5xx          -            2.5 % (10)",
        "p50          -            20 ms",
        "p95          -            100 ms",
        "p99          -            1500 ms",
        "pods, mean   0.00         1.25",
        "pod-seconds  0            375",
        "GiB-seconds  0            94",
        "",
        "SETTING  hello-00001  hello-00002",
        "env KEY  -            set",
    ]


def test_comparison_shows_cost_when_prices_are_configured() -> None:
    old, new = (
        msgspec.structs.replace(compared_revision, price=price) for compared_revision, price in ((OLD, 0.0), (NEW, 0.5))
    )
    assert lines(old, new)[-2:] == ["cost         0.0000       0.5000", "no setting differs"]
