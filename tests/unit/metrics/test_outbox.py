import threading

import pytest

from serving.metrics.outbox import ExportOutbox


def test_items_are_sent_in_order_in_batches_by_another_thread() -> None:
    sent: list[list[int]] = []
    threads: set[int] = set()

    def send(batch: list[int]) -> None:
        sent.append(batch)
        threads.add(threading.get_ident())

    outbox = ExportOutbox("numbers", send, period_s=3600, items_max=100, batch_max=2)
    for number in range(5):
        outbox.add(number)
    outbox.close(10)
    assert sent == [[0, 1], [2, 3], [4]]
    assert threading.get_ident() not in threads
    assert repr(outbox) == "ExportOutbox(numbers, 0 items, 0 dropped)"


def test_the_oldest_is_dropped_where_there_is_no_place() -> None:
    sent: list[int] = []
    outbox = ExportOutbox("numbers", sent.extend, period_s=3600, items_max=2, batch_max=10)
    for number in range(5):
        outbox.add(number)
    assert outbox.dropped_count == 3
    outbox.close(10)
    assert sent == [3, 4]


def test_a_batch_that_fails_is_told_and_the_next_goes(caplog: pytest.LogCaptureFixture) -> None:
    sent, done = [], threading.Event()

    def send(batch: list[int]) -> None:
        if batch == [1]:
            raise RuntimeError("no receiver")
        sent.extend(batch)
        done.set()

    outbox = ExportOutbox("numbers", send, period_s=0.001, items_max=10, batch_max=1)
    outbox.add(1)
    outbox.add(2)
    assert done.wait(60)
    outbox.close(10)
    assert sent == [2]
    assert [record.message for record in caplog.records] == ["otlp.failed"]


def test_nobody_waits_for_a_receiver_that_does_not_answer() -> None:
    stuck = threading.Event()

    def send(_: list[int]) -> None:
        stuck.wait(30)

    outbox = ExportOutbox("numbers", send, period_s=0.001, items_max=10, batch_max=1)
    outbox.add(1)
    outbox.close(0.01)
    stuck.set()
    outbox.close(10)
