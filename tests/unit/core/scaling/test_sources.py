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


def test_nothing_is_known_of_the_second_that_is_not_over() -> None:
    assert of_pods(stat(10.1, 5)).complete(10.9) == []


def test_the_latest_report_of_a_pod_counts_once() -> None:
    assert loads(of_pods(stat(10.1, 5), stat(10.9, 7)).complete(11.0)) == {10: 7}


def test_a_report_counts_until_it_is_too_old() -> None:
    assert loads(of_pods(stat(10.6, 5)).complete(60.0)) == {10: 5, 11: 5, 12: 5}
    assert loads(of_pods(stat(10.4, 5)).complete(60.0)) == {10: 5, 11: 5}


def test_what_came_through_an_activator_is_left_to_it() -> None:
    sources = of_pods(stat(10.1, 5, proxied=3, requests=8))
    sources.record_activator(stat(10.2, 4, by="activator", requests=3))
    (second,) = sources.complete(11.0)
    assert second.load == Stat(concurrency=6, request_count=8)


def test_what_an_activator_reports_in_a_second_adds_up() -> None:
    sources = of_activators(stat(10.1, 5), stat(10.2, 10), stat(10.8, 1), stat(11.1, 16))
    assert loads(sources.complete(12.0)) == {11: 16}
    assert loads(of_activators(stat(10.1, 5), stat(10.2, 10)).complete(11.0)) == {10: 15}


def test_seconds_without_a_report_are_absent() -> None:
    sources = of_activators(stat(10.1, 5))
    assert loads(sources.complete(14.0)) == {10: 5}
    assert loads(sources.complete(15.0)) == {}


def test_silent_activators_leave_the_second_to_the_pods() -> None:
    (second,) = of_pods(stat(10.1, 5)).complete(11.0)
    assert second.activators is None


def test_a_long_silence_costs_no_more_than_a_short_one() -> None:
    assert loads(of_pods(stat(10.6, 5)).complete(1e9)) == {10: 5, 11: 5, 12: 5}


def test_time_that_goes_back_reports_nothing() -> None:
    assert of_pods(stat(10.1, 5)).complete(9.0) == []


def test_the_latest_reports_are_the_present() -> None:
    sources = of_activators(stat(10.5, 100), stat(11.2, 20))
    assert sources.present(11.3) == Stat(concurrency=120, request_count=0)


def test_present_holds_no_two_reports_of_one_activator() -> None:
    assert of_activators(stat(10.5, 100), stat(11.5, 100)).present(11.5).concurrency == 100


def test_present_is_not_fooled_by_a_report_that_leaves_out_pokes() -> None:
    sources = of_activators(stat(10.1, 1), stat(10.2, 99), stat(10.9, 0))
    assert sources.present(11.2).concurrency == 100


def test_present_counts_pods_while_their_report_is_valid() -> None:
    sources = of_pods(stat(10.0, 5, proxied=2, requests=4))
    assert sources.present(12.4) == Stat(concurrency=3, request_count=2)
    assert sources.present(12.6) == Stat()


def test_present_is_never_below_zero() -> None:
    assert of_pods(stat(10.0, 1, proxied=2)).present(10.1) == Stat()


def test_a_pod_that_is_gone_counts_no_more() -> None:
    sources = of_pods(stat(10.1, 5, by="a"), stat(10.1, 7, by="b"))
    sources.forget_pod("a")
    sources.forget_pod("a")
    assert loads(sources.complete(11.0)) == {10: 7}


def test_sources_that_went_silent_take_no_room() -> None:
    sources = of_pods(stat(10.1, 5))
    sources.record_activator(stat(10.1, 5, by="activator"))
    sources.complete(20.0)
    assert sources.pods == {}


def test_an_activator_that_never_stops_telling_takes_little_room() -> None:
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


def test_a_second_has_the_mean_of_reports_and_not_what_pokes_saw() -> None:
    # Nine requests come at once and take half a second: inside are nine, and the mean is 4.5.
    sources = of_activators(
        report(9.95, 0.0, mean=0.0, requests=0.0), poke(10.2, 9.0), report(10.95, 0.0, mean=4.5, requests=9.0)
    )
    assert sources.present(10.95).concurrency == 9.0
    (second,) = sources.complete(11.0)
    assert (second.load.concurrency, second.load.request_count) == (4.5, 9.0)


def test_a_poke_and_a_report_in_one_moment_are_the_mean_of_the_report() -> None:
    sources = of_activators(poke(10.91, 9.0), report(10.92, 1.0, mean=2.0, requests=9.0))
    assert sources.present(10.95).concurrency == 10.0
    assert loads(sources.complete(11.0)) == {10: 2.0}


def test_of_a_second_with_a_poke_alone_nothing_is_known() -> None:
    assert of_activators(poke(10.9, 9.0)).complete(11.0) == []


def test_the_last_report_of_each_activator_is_reported_without_pokes() -> None:
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


def test_a_busy_pod_without_a_gauge_counts_as_the_mean_of_those_that_report_it() -> None:
    reported = [
        msgspec.structs.replace(stat(10.1, 1, by=name), gauges={"g": value}) for name, value in (("a", 4.0), ("b", 6.0))
    ]
    (second,) = of_pods(*reported, stat(10.2, 1, by="slow"), stat(10.3, 0, by="idle")).complete(11.0)
    assert second.load.gauges == {"g": 15.0}


def test_an_activator_reports_no_gauge_and_stands_for_no_pod() -> None:
    sources = of_pods(msgspec.structs.replace(stat(10.1, 1), gauges={"g": 4.0}))
    sources.record_activator(stat(10.2, 3, by="activator"))
    (second,) = sources.complete(11.0)
    assert second.load.gauges == {"g": 4.0}


def dormant(at_s: float, *, by: str = "p") -> Stat:
    return Stat(pod=by, at_s=at_s, is_dormant=True)


def test_a_dormant_pod_has_no_load_in_each_second() -> None:
    sources = of_pods(dormant(10.1))
    assert loads(sources.complete(15.0)) == {10: 0, 11: 0, 12: 0, 13: 0, 14: 0}
    assert loads(sources.complete(80.0)) == dict.fromkeys(range(15, 80), 0)
    assert sources.pods.keys() == {"p"}


def test_a_dormant_pod_that_woke_is_silent_like_any_other() -> None:
    sources = of_pods(dormant(10.1), stat(20.1, 3))
    assert loads(sources.complete(60.0)) == {20: 3, 21: 3}


def test_a_dormant_pod_that_is_gone_says_nothing() -> None:
    sources = of_pods(dormant(10.1))
    sources.forget_pod("p")
    assert sources.complete(15.0) == []


def test_a_long_time_beside_a_dormant_pod_is_a_window_at_most() -> None:
    assert len(of_pods(dormant(10.1)).complete(1e6)) == 3600


def test_requests_in_each_pod_are_those_of_the_last_report_that_names_any() -> None:
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
