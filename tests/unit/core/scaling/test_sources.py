import msgspec

from serving.core.model.stat import Stat
from serving.core.scaling.sources import Second, Sources


def stat(at_s: float, concurrency: float, *, by: str = "p", requests: float = 0.0, proxied: float = 0.0) -> Stat:
    return Stat(
        pod=by,
        at_s=at_s,
        concurrency=concurrency,
        request_count=requests,
        proxied_concurrency=proxied,
        proxied_request_count=proxied,
    )


def of_pods(*stats: Stat) -> Sources:
    sources = Sources()
    for each_stat in stats:
        sources.complete(each_stat.at_s)
        sources.record_pod(each_stat)
    return sources


def of_activators(*stats: Stat) -> Sources:
    sources = Sources()
    for each_stat in stats:
        sources.complete(each_stat.at_s)
        sources.record_activator(each_stat)
    return sources


def loads(seconds: list[Second]) -> dict[int, float]:
    return {second.number: second.load.concurrency for second in seconds}


def test_incomplete_second_is_not_returned() -> None:
    assert of_pods(stat(10.1, 5)).complete(10.9) == []


def test_latest_report_of_pod_in_a_second_counts() -> None:
    assert loads(of_pods(stat(10.1, 5), stat(10.9, 7)).complete(11.0)) == {10: 7}


def test_report_counts_until_it_expires() -> None:
    assert loads(of_pods(stat(10.6, 5)).complete(60.0)) == {10: 5, 11: 5, 12: 5}
    assert loads(of_pods(stat(10.4, 5)).complete(60.0)) == {10: 5, 11: 5}


def test_proxied_requests_are_counted_only_for_activator() -> None:
    sources = of_pods(stat(10.1, 5, proxied=3, requests=8))
    sources.record_activator(stat(10.2, 4, by="activator", requests=3))
    (second,) = sources.complete(11.0)
    assert second.load == Stat(concurrency=6, request_count=8)


def test_activator_reports_in_a_second_are_added() -> None:
    sources = of_activators(stat(10.1, 5), stat(10.2, 10), stat(10.8, 1), stat(11.1, 16))
    assert loads(sources.complete(12.0)) == {11: 16}
    assert loads(of_activators(stat(10.1, 5), stat(10.2, 10)).complete(11.0)) == {10: 15}


def test_seconds_without_report_are_absent() -> None:
    sources = of_activators(stat(10.1, 5))
    assert loads(sources.complete(14.0)) == {10: 5}
    assert loads(sources.complete(15.0)) == {}


def test_second_without_activator_reports_has_none() -> None:
    (second,) = of_pods(stat(10.1, 5)).complete(11.0)
    assert second.activators is None


def test_long_silence_returns_only_seconds_with_valid_reports() -> None:
    assert loads(of_pods(stat(10.6, 5)).complete(1e9)) == {10: 5, 11: 5, 12: 5}


def test_backward_clock_step_returns_no_seconds() -> None:
    assert of_pods(stat(10.1, 5)).complete(9.0) == []


def test_present_is_sum_of_latest_reports() -> None:
    sources = of_activators(stat(10.5, 100), stat(11.2, 20))
    assert sources.present(11.3) == Stat(concurrency=120, request_count=0)


def test_present_counts_latest_report_of_activator() -> None:
    assert of_activators(stat(10.5, 100), stat(11.5, 100)).present(11.5).concurrency == 100


def test_present_includes_earlier_pokes_of_last_second() -> None:
    sources = of_activators(stat(10.1, 1), stat(10.2, 99), stat(10.9, 0))
    assert sources.present(11.2).concurrency == 100


def test_present_counts_pods_while_their_report_is_valid() -> None:
    sources = of_pods(stat(10.0, 5, proxied=2, requests=4))
    assert sources.present(12.4) == Stat(concurrency=3, request_count=2)
    assert sources.present(12.6) == Stat()


def test_present_is_never_negative() -> None:
    assert of_pods(stat(10.0, 1, proxied=2)).present(10.1) == Stat()


def test_removed_pod_is_not_counted() -> None:
    sources = of_pods(stat(10.1, 5, by="a"), stat(10.1, 7, by="b"))
    sources.forget_pod("a")
    sources.forget_pod("a")
    assert loads(sources.complete(11.0)) == {10: 7}


def test_silent_sources_are_dropped() -> None:
    sources = of_pods(stat(10.1, 5))
    sources.record_activator(stat(10.1, 5, by="activator"))
    sources.complete(20.0)
    assert sources.pods == {}


def test_reports_stored_per_activator_are_bounded() -> None:
    sources = of_activators(*(stat(10 + number / 1000, 1) for number in range(5000)))
    assert sum(len(reported) for reported in sources._activators.values()) == 40
    assert loads(sources.complete(15.0)) == {14: 1000}
    assert sources.present(15.0).concurrency == 1000


def poke(at_s: float, count: float) -> Stat:
    return msgspec.structs.replace(
        stat(at_s, count, by="a", requests=count), window_concurrency=0.0, window_request_count=0.0
    )


def report(at_s: float, left: float, *, mean: float, requests: float) -> Stat:
    return msgspec.structs.replace(stat(at_s, left, by="a"), window_concurrency=mean, window_request_count=requests)


def test_second_has_mean_of_reports_without_pokes() -> None:
    # Nine requests come at once and take half a second: inside are nine, and the mean is 4.5.
    sources = of_activators(
        report(9.95, 0.0, mean=0.0, requests=0.0), poke(10.2, 9.0), report(10.95, 0.0, mean=4.5, requests=9.0)
    )
    assert sources.present(10.95).concurrency == 9.0
    (second,) = sources.complete(11.0)
    assert (second.load.concurrency, second.load.request_count) == (4.5, 9.0)


def test_poke_and_report_in_one_second_count_as_mean_of_report() -> None:
    sources = of_activators(poke(10.91, 9.0), report(10.92, 1.0, mean=2.0, requests=9.0))
    assert sources.present(10.95).concurrency == 10.0
    assert loads(sources.complete(11.0)) == {10: 2.0}


def test_second_with_only_a_poke_is_unknown() -> None:
    assert of_activators(poke(10.9, 9.0)).complete(11.0) == []


def test_reported_is_sum_of_last_reports_without_pokes() -> None:
    poke = msgspec.structs.replace(stat(10.5, 20, by="a"), window_concurrency=0.0, window_request_count=0.0)
    report = msgspec.structs.replace(
        stat(11.0, 0, by="a"), window_concurrency=12.0, window_request_count=6.0, concurrency=0.0
    )
    sources = of_activators(stat(10.0, 4, by="a"), stat(10.2, 3, by="b", requests=1), poke)
    assert sources.reported(10.9).concurrency == 7
    sources = of_activators(stat(10.0, 4, by="a"), stat(10.2, 3, by="b", requests=1), poke, report)
    assert (sources.reported(11.1).concurrency, sources.reported(11.1).request_count) == (15, 7)
    # The report of b has expired.
    assert sources.reported(11.8).concurrency == 12
    assert of_activators(poke).reported(10.6).concurrency == 0


def test_missing_gauge_of_busy_pod_is_mean_of_other_pods() -> None:
    reported = [
        msgspec.structs.replace(stat(10.1, 1, by=name), gauges={"g": value}) for name, value in (("a", 4.0), ("b", 6.0))
    ]
    (second,) = of_pods(*reported, stat(10.2, 1, by="slow"), stat(10.3, 0, by="idle")).complete(11.0)
    assert second.load.gauges == {"g": 15.0}


def test_activator_report_does_not_affect_gauges() -> None:
    sources = of_pods(msgspec.structs.replace(stat(10.1, 1), gauges={"g": 4.0}))
    sources.record_activator(stat(10.2, 3, by="activator"))
    (second,) = sources.complete(11.0)
    assert second.load.gauges == {"g": 4.0}


def dormant(at_s: float, *, by: str = "p") -> Stat:
    return Stat(pod=by, at_s=at_s, is_dormant=True)


def test_dormant_pod_has_zero_load_in_each_second() -> None:
    sources = of_pods(dormant(10.1))
    assert loads(sources.complete(15.0)) == {10: 0, 11: 0, 12: 0, 13: 0, 14: 0}
    assert loads(sources.complete(80.0)) == dict.fromkeys(range(15, 80), 0)
    assert sources.pods.keys() == {"p"}


def test_woken_pod_expires_like_any_other() -> None:
    sources = of_pods(dormant(10.1), stat(20.1, 3))
    assert loads(sources.complete(60.0)) == {20: 3, 21: 3}


def test_removed_dormant_pod_is_not_counted() -> None:
    sources = of_pods(dormant(10.1))
    sources.forget_pod("p")
    assert sources.complete(15.0) == []


def test_seconds_of_dormant_pod_are_limited_to_longest_window() -> None:
    assert len(of_pods(dormant(10.1)).complete(1e6)) == 3600


def test_pod_loads_are_those_of_last_report_that_has_any() -> None:
    sources = Sources()
    assert sources.pod_loads == {}
    for name, at_s, loads in (
        ("a", 0.1, {"p": 2.0, "q": 1.0}),
        ("b", 0.1, {"p": 1.0}),
        ("a", 0.11, {}),
        ("a", 0.5, {}),
    ):
        sources.record_activator(Stat(pod=name, at_s=at_s, concurrency=1.0, pod_loads=loads, pod_heats=loads))
    assert sources.pod_loads == sources.pod_heats == {"p": 3.0, "q": 1.0}
