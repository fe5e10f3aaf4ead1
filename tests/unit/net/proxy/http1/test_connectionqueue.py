from serving.net.proxy.http1.pool import ConnectionQueue
from tests.unit.net.proxy.waiting import Waiting

_A, _B = ("10.0.0.1", 80), ("10.0.0.2", 80)
_MANY = 5000


def _filled(*since_s: float, is_for_new: bool = False) -> tuple[ConnectionQueue, list[Waiting]]:
    queue, clients = ConnectionQueue(), [Waiting() for _ in since_s]
    for client, each_s in zip(clients, since_s, strict=True):
        queue.add(_A, client, since_s=each_s, is_for_new=is_for_new)
    return queue, clients


def test_requests_are_popped_in_order_by_address() -> None:
    queue, (first, second) = _filled(1, 1)
    assert (queue.is_waiting, queue.count(_A), queue.count(_B)) == (True, 2, 0)
    assert queue.pop(_B, is_reused=True) is None
    assert [queue.pop(_A, is_reused=reused) for reused in (True, False, True)] == [first, second, None]
    assert not queue.is_waiting


def test_retry_waits_for_new_connection_and_retains_its_position() -> None:
    queue, (retry,) = _filled(1, is_for_new=True)
    other = Waiting()
    queue.add(_A, other, since_s=1, is_for_new=False)
    assert queue.pop(_A, is_reused=True) is other
    assert queue.pop(_A, is_reused=True) is None
    assert queue.count(_A) == 1
    assert queue.pop(_A, is_reused=False) is retry


def test_requests_that_no_longer_wait_are_skipped() -> None:
    queue, clients = _filled(*[1.0] * _MANY)
    for client in clients[:-1]:
        client.is_waiting = False
    assert queue.pop(_A, is_reused=True) is clients[-1]
    assert not queue.is_waiting


def test_failed_attempt_fails_requests_queued_before_it_or_the_first() -> None:
    queue, (first, second, third) = _filled(1, 2, 3)
    first.is_waiting = False
    assert queue.failed(_A, before_s=0) == [second]
    assert queue.count(_A) == 1
    queue, (first, second, third) = _filled(1, 2, 3)
    assert queue.failed(_A, before_s=2) == [first, second]
    assert queue.failed(_A, before_s=4) == [third]
    assert queue.failed(_A, before_s=4) == []
