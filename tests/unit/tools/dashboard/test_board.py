import math
import random
from typing import Any

import pytest

from serving.core.traffic.latencies import FINE_TYPE, bucket_of
from serving.net.metrics.activator import ActivatorMetrics
from serving.tools.dashboard.board import (
    COLUMNS,
    STEP_S,
    STEPS,
    Board,
    RequestRates,
    Requests,
    RevisionHistory,
    Sparklines,
    pod_uses,
)
from serving.tools.dashboard.coldstarts import ColdRequest, StartFacts

KEY = "default/hello-00001"

ROW = [float(number) for number in range(len(COLUMNS))]


def pod(
    name: str, *, ready: bool = True, ending: bool = False, dormant: bool = False, revision: str = "hello-00001"
) -> dict[str, Any]:
    return {
        "namespace": "default",
        "name": name,
        "revision": revision,
        "ready": ready,
        "ending": ending,
        "dormant": dormant,
        "node": "n",
    }


def sample(at_s: float = 0.0, **changes: object) -> dict[str, Any]:
    numbers = {
        "namespace": "default",
        "revision": "hello-00001",
        "at_wall_s": at_s,
        "running": 3.0,
        "held": 1.0,
        "target": 7.0,
        "observed_stable": 2.5,
        "wanted_count": 2,
        "is_panic": True,
        "pods": {"a": 3.0},
    }
    return numbers | changes


def decision(at_s: float, *, apply: int | None = 2, wanted: object = 2) -> dict[str, Any]:
    outcome = {"apply_count": apply, "gate": {"wanted": wanted}}
    reported = {"since_wall_s": at_s, "outcome": outcome}
    return {"namespace": "default", "revision": "hello-00001", "sentence": "1 → 2: stable", "told": reported}


def new_board() -> Board:
    board = Board(100)
    board.put("revision", KEY, {"name": "hello-00001"})
    return board


def test_row_combines_pods_last_sample_and_request_rates() -> None:
    board = new_board()
    board.put("pod", "default/a", pod("a"))
    board.put("pod", "default/b", pod("b", ready=False))
    board.put("pod", "default/c", pod("c", ending=True, dormant=True))
    board.put("pod", "default/d", pod("d", dormant=True))
    board.sample(sample())
    board.requests({KEY: RequestRates(rates=(5.0, 0.0, 0.0, 1.0), quantiles_s=(0.1, None, None), waiting=4.0)})
    row = [3.0, 4.0, 7.0, 2.5, 2, 2.0, 1.0, 1.0, 1.0, 5.0, 0.0, 0.0, 1.0, 0.1, None, None, None, None]
    assert board.tick(2.0) == {KEY: row}
    assert board.rows == {KEY: row}
    assert board.tick(4.0) == {}
    assert board.history.read(KEY)["ready"] == [2.0, 2.0]


def test_pod_usage_is_summed_per_revision() -> None:
    board = new_board()
    for name in ("a", "b"):
        board.put("pod", f"default/{name}", pod(name))
    board.measured(pod_uses([used("a", "250m", "64Mi"), used("elsewhere", "1", "1Gi")]))
    assert board.tick(2.0)[KEY][-2:] == [0.25, 64 * 2**20]
    assert [(entry["cpu_cores"], entry["memory_bytes"]) for entry in board.pods(KEY)] == [
        (0.25, 64 * 2**20),
        (None, None),
    ]


def used(name: str, cpu: str, memory: str) -> dict[str, Any]:
    containers = [{"name": "c", "usage": {"cpu": cpu, "memory": memory}}, {"name": "queue-proxy"}]
    return {"metadata": {"namespace": "default", "name": name}, "containers": containers}


def test_count_mode_and_sentence_come_from_one_decision() -> None:
    board = new_board()
    board.decision(decision(1.0))
    # The deciders want 0; the gate still keeps 1.
    board.sample(sample(8.0, wanted_count=1, sentence="stays 1: stable; 1 stays", is_panic=False))
    row = dict(zip(COLUMNS, board.tick(9.0)[KEY], strict=True))
    text = {"key": KEY, "at_s": 8.0, "sentence": "stays 1: stable; 1 stays", "is_change": False, "wanted": 1}
    assert (row["desired"], row["is_panic"]) == (1, 0.0)
    # A later sample belongs to the next row.
    board.sample(sample(10.0, wanted_count=0, sentence="1 → 0: stable"))
    assert board.present(KEY) == text
    assert board.last_decisions() == {KEY: text}
    # Without samples from the autoscaler, the last decision and its time are shown.
    board.tick(60.0)
    assert board.present(KEY) == board.decisions(KEY)[-1]
    # The same holds for samples of an earlier version, without a sentence.
    board.sample(sample(60.0))
    board.tick(60.0)
    assert board.present(KEY) == board.decisions(KEY)[-1]


def test_outdated_sample_is_not_used_in_a_row() -> None:
    board = new_board()
    board.sample(sample(at_s=0.0))
    assert board.tick(60.0)[KEY][:5] == [None] * 5


def test_since_returns_only_changes_after_a_version() -> None:
    board = new_board()
    before = board.version
    board.put("revision", KEY, {"name": "hello-00001"})
    assert (board.since(before), board.version) == ([], before)
    board.put("service", "default/hello", {"name": "hello"})
    board.put("revision", KEY, None)
    board.put("revision", KEY, None)
    new = {"kind": "service", "key": "default/hello", "view": {"name": "hello"}}
    assert board.since(before) == [{"kind": "revision", "key": KEY, "view": None}, new]
    assert board.since(0) == [new]


def test_a_returned_object_is_not_reported_as_deleted() -> None:
    board = new_board()
    before = board.version
    board.put("revision", KEY, None)
    board.put("revision", KEY, {"name": "again"})
    assert board.since(before) == [{"kind": "revision", "key": KEY, "view": {"name": "again"}}]


def test_since_an_expired_version_returns_all_objects() -> None:
    board = new_board()
    for number in range(10_001):
        board.put("service", "default/x", {"name": str(number)})
        board.put("service", "default/x", None)
    assert board.since(1) == [{"kind": "revision", "key": KEY, "view": {"name": "hello-00001"}}]
    assert board.since(board.version - 1) == [{"kind": "service", "key": "default/x", "view": None}]


def test_pods_show_their_load_and_follow_their_revision() -> None:
    board = new_board()
    board.put("pod", "default/a", pod("a"))
    board.put("pod", "default/b", pod("b"))
    board.sample(sample())
    assert [(entry["name"], entry["running"]) for entry in board.pods(KEY)] == [("a", 3.0), ("b", None)]
    board.put("pod", "default/a", pod("a", revision="other"))
    board.put("pod", "default/b", None)
    board.put("pod", "default/b", None)
    assert (board.pods(KEY), len(board.pods("default/other"))) == ([], 1)


def test_pods_of_a_service_are_listed_newest_revision_first() -> None:
    board = Board(100)
    for name, service in (("hello-00001", "hello"), ("hello-00002", "hello"), ("other-00001", "other")):
        board.put("revision", f"default/{name}", {"namespace": "default", "name": name, "service": service})
        for letter in "ba":
            board.put("pod", f"default/{name}-{letter}", pod(f"{name}-{letter}", revision=name))
    names = [entry["name"] for entry in board.pods_of_service("default", "hello")]
    assert names == ["hello-00002-a", "hello-00002-b", "hello-00001-a", "hello-00001-b"]
    board.put("pod", "default/hello-00002-a", None)
    board.put("revision", "default/hello-00001", None)
    assert [entry["name"] for entry in board.pods_of_service("default", "hello")] == ["hello-00002-b"]
    assert board.pods_of_service("elsewhere", "hello") == []


def test_workloads_have_their_own_kind_and_pods() -> None:
    board = Board(100)
    views = {"shop": {"service": "", "kind": "StatefulSet"}, "old-00001": {"service": "old"}, "bare": {"service": ""}}
    for name, view in views.items():
        board.put("revision", f"default/{name}", {"namespace": "default", "name": name, **view})
        board.put("pod", f"default/{name}-a", pod(f"{name}-a", revision=name))
    assert board.workload_kinds() == {"default/shop": "StatefulSet"}
    assert [entry["name"] for entry in board.pods_of_service("default", "shop")] == ["shop-a"]


def test_decisions_are_stored_once_until_their_revision_is_deleted() -> None:
    board = new_board()
    board.decision(decision(1.0))
    board.decision(decision(1.0))
    seen = board.decision(decision(2.0, apply=None, wanted={"missing": "x"}))
    assert (seen["is_change"], seen["wanted"]) == (False, None)
    assert [entry["at_s"] for entry in board.decisions(KEY)] == [1.0, 2.0]
    assert board.last_decisions() == {KEY: seen}
    assert board.present("default/other") is None
    board.put("revision", KEY, None)
    assert board.decisions(KEY) == []


def test_history_returns_columns_with_times() -> None:
    history = RevisionHistory(10)
    history.add(100.0, {"default/a": ROW})
    history.add(102.0, {"default/a": [None, *ROW[1:]], "default/b": ROW})
    entry = history.read("default/a")
    assert entry["at_s"] == [100.0, 102.0]
    assert math.isnan(entry["running"][1])
    assert entry[COLUMNS[-1]] == [float(len(COLUMNS) - 1)] * 2
    assert history.read("default/b")["at_s"] == [102.0]


def test_history_retains_a_bounded_number_of_rows() -> None:
    history = RevisionHistory(10)
    for number in range(1000):
        history.add(number, {"default/a": ROW} | ({"default/b": ROW} if number > 995 else {}))
    assert history.read("default/a")["at_s"] == [float(number) for number in range(990, 1000)]
    assert history.read("default/b")["at_s"] == [996.0, 997.0, 998.0, 999.0]
    assert len(history._times) < 10 + 128


def test_history_of_a_removed_revision_is_empty() -> None:
    history = RevisionHistory(10)
    history.add(0.0, {"default/a": ROW})
    history.add(2.0, {})
    assert history.read("default/a") == {"at_s": [], **{name: [] for name in COLUMNS}}


def test_cold_starts_of_a_revision_have_steps_and_advice() -> None:
    board = Board(100)
    for name in ("hello-00001", "hello-00002"):
        board.put("revision", f"default/{name}", {"namespace": "default", "name": name, "service": "hello"})
    board.put_facts(KEY, StartFacts(service="hello", is_python=True))
    board.decision(decision(1.01))
    requests = [ColdRequest(revision=name, asked_s=1.0, waited_s=0.1) for name in ("hello-00001", "other-00001")]
    cold_starts = board.cold_starts(KEY, requests)
    assert cold_starts["revision"] == KEY
    assert [start["took_s"] for start in cold_starts["starts"]] == [0.1]
    assert set(cold_starts["starts"][0]["steps"]) == {"autoscaler decides", "unknown"}
    assert "`serving scale hello --min 1`" in cold_starts["median"]["advice"]
    assert board.cold_starts("default/hello-00002", requests)["starts"] == []
    assert board.revisions_of("default/hello") == ["default/hello-00002", KEY]
    assert board.revisions_of(KEY) == [KEY]
    assert board.revisions_of("shop/hello") == []
    board.put("revision", KEY, None)
    assert set(board.cold_starts(KEY, requests)["starts"][0]["steps"]) == {"unknown"}


def test_history_begins_with_the_creation_of_the_revision() -> None:
    board = new_board()
    assert board.created_s(KEY) == 0.0
    board.put("revision", KEY, {"name": "hello-00001", "created": "1970-01-01T00:00:20Z"})
    assert (board.created_s(KEY), board.created_s("default/other")) == (20.0, 0.0)
    for at_s in (10.0, 20.0, 30.0):
        board.tick(at_s)
    assert board.history.read(KEY, from_s=board.created_s(KEY))["at_s"] == [20.0, 30.0]


def test_marks_of_a_deleted_revision_are_removed() -> None:
    board = new_board()
    board.put("revision", KEY, {"name": "hello-00001", "ready": "False", "conditions": []})
    board.marks.drain(30.0)
    assert [mark.text for mark in board.marks.recent(KEY, from_s=30.0, to_s=30.0)] == ["hello-00001 fails"]
    assert board.marks.recent(KEY, from_s=31.0, to_s=40.0) == []
    board.put("revision", KEY, None)
    assert board.marks.recent(KEY, from_s=0.0, to_s=40.0) == []


Rates = list[float | None]


BUSY, IDLE = "default/busy-00001", "default/idle-00001"


NOTHING: Rates = [None, None, None, None]


def filled(*ticks: tuple[float, dict[str, Rates]]) -> Sparklines:
    sparklines = Sparklines()
    for at_s, rates in ticks:
        sparklines.add(at_s, rates)
    return sparklines


def test_sparkline_sums_ticks_per_step() -> None:
    rates: dict[str, Rates] = {BUSY: [3.0, 0.0, None, 1.0], IDLE: NOTHING}
    entry = filled((1000.0, rates), (1002.0, rates), (1000.0 + STEP_S, {**rates, BUSY: [2.0, 0.0, 0.0, 0.0]})).read()
    assert (entry["step_s"], entry["step"]) == (STEP_S, 1020 // STEP_S)
    assert entry["ticks"] == [0.0] * (STEPS - 2) + [2.0, 1.0]
    # A revision without requests is not transmitted.
    assert entry["sums"] == {BUSY: [[0.0] * (STEPS - 2) + [8.0, 2.0], [0.0] * (STEPS - 2) + [2.0, 0.0]]}


def test_sparkline_steps_without_a_tick_are_zero() -> None:
    rates: dict[str, Rates] = {BUSY: [1.0, None, None, None]}
    entry = filled((1000.0, rates), (1000.0 + 3 * STEP_S, rates)).read()
    assert entry["ticks"][-4:] == [1.0, 0.0, 0.0, 1.0]
    assert entry["sums"][BUSY][0][-4:] == [1.0, 0.0, 0.0, 1.0]


def test_sparkline_drops_rates_older_than_its_steps() -> None:
    entry = filled((1000.0, {BUSY: [1.0, 0.0, 0.0, 0.0]}), (1000.0 + STEPS * STEP_S, {BUSY: NOTHING})).read()
    assert entry["sums"] == {}
    assert len(entry["ticks"]) == STEPS


def test_sparkline_counts_ticks_after_the_clock_is_set_back() -> None:
    rates: dict[str, Rates] = {BUSY: [1.0, 0.0, 0.0, 0.0]}
    entry = filled((1000.0, rates), (500.0, rates)).read()
    assert entry["sums"][BUSY][0][-1] == 2.0


def test_sparkline_of_a_deleted_revision_is_removed() -> None:
    entry = filled((1000.0, {BUSY: [1.0, 0.0, 0.0, 0.0]}), (1002.0, {IDLE: NOTHING})).read()
    assert entry["sums"] == {}


LABELS = 'kn_namespace_name="default",kn_revision_name="hello-00001"'


def page(counts: dict[float, int], status: str = "2xx") -> str:
    """The lines of a page: counts of requests by their duration in seconds."""
    labels = f'namespace="default",revision="hello-00001",response_code_class="{status}"'
    return "".join(
        f'serving_request_duration_buckets{{{labels},bucket="{bucket_of(took_s)}"}} {count}\n'
        for took_s, count in counts.items()
    )


def test_first_metrics_reading_yields_no_rates() -> None:
    assert Requests().read({"a": page({0.1: 4})}, 0.0) == {}


def test_response_rates_and_quantiles_cover_the_last_interval() -> None:
    requests = Requests()
    requests.read({"a": page({0.1: 1000})}, 10.0)
    request_rates = requests.read({"a": page({0.1: 1060, 0.2: 40}) + page({3.0: 10}, status="5xx")}, 12.0)[KEY]
    assert request_rates.rates == (50.0, 0.0, 0.0, 5.0)
    # 110 responses: the 55th took 0.1 s, the 105th and the 109th 3 s.
    assert request_rates.quantiles_s == pytest.approx((0.1, 3.0, 3.0), rel=0.02)


def test_reset_counter_is_counted_from_zero() -> None:
    requests = Requests()
    requests.read({"a": page({0.1: 90})}, 0.0)
    assert requests.read({"a": page({0.1: 4})}, 2.0)[KEY].rates[0] == 2.0


def test_waiting_requests_of_all_activators_are_summed() -> None:
    waiting = f"serving_requests_waiting{{{LABELS}}} "
    request_rates = Requests().read({"a": f"{waiting}2.0", "b": f"{waiting}3.0\nserving_requests_waiting{{}} 9"}, 0.0)
    assert request_rates == {KEY: RequestRates(waiting=5.0)}


def test_activator_that_returns_causes_no_rate_spike() -> None:
    requests = Requests()
    requests.read({"a": page({0.1: 100}), "b": page({0.2: 0})}, 0.0)
    request_rates = requests.read({"a": page({0.1: 110}), "b": page({0.2: 30})}, 2.0)[KEY]
    assert request_rates.rates[0] == 20.0
    assert request_rates.quantiles_s[0] == pytest.approx(0.2, rel=0.02)
    assert requests.read({"a": page({0.1: 114})}, 4.0)[KEY].rates[0] == 2.0
    assert requests.read({"a": page({0.1: 118}), "b": page({0.2: 900})}, 6.0)[KEY].rates[0] == 2.0


def test_unchanged_counters_yield_zero_rates_without_quantiles() -> None:
    requests = Requests()
    requests.read({"a": page({0.1: 9})}, 0.0)
    assert requests.read({"a": page({0.1: 9})}, 2.0) == {
        KEY: RequestRates(rates=(0, 0, 0, 0), quantiles_s=(None, None, None))
    }
    assert requests.read({"a": page({0.1: 9})}, 2.0) == {}


def test_quantiles_of_an_activator_page_are_within_2_percent() -> None:
    key = ("default", "hello-00001")
    metrics = ActivatorMetrics(configuration_of=lambda _: "hello", keys=lambda: [key], inside=list)
    requests, dice = Requests(), random.Random(1)
    metrics.of(key).ended(200, 1.0, at_s=0.0, traceparent=b"")
    requests.read({"a": metrics.page.text(FINE_TYPE)}, 0.0)
    durations_s = sorted(dice.lognormvariate(0, 1) for _ in range(1000))
    for took_s in durations_s:
        metrics.of(key).ended(200, took_s, at_s=0.0, traceparent=b"")
    request_rates = requests.read({"a": metrics.page.text(FINE_TYPE)}, 2.0)[KEY]
    assert request_rates.quantiles_s == pytest.approx([durations_s[at - 1] for at in (500, 950, 990)], rel=0.02)
    assert "serving_request_duration_buckets" not in metrics.page.text("text/plain")
