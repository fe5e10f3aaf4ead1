import gc
import weakref

from serving.net.metrics.controller import ControllerMetrics


class Counts:
    def __init__(self, waiting: int, writes: int) -> None:
        self.waiting_count, self.writes_count = waiting, writes


def test_writes_are_summed_over_terms_without_retaining_former_controllers() -> None:
    metrics = ControllerMetrics()
    assert "serving_controller_writes_total 0.0" in metrics.page.text("")
    first = Counts(waiting=9, writes=5)
    metrics.term_began(first)
    former = weakref.ref(first)
    metrics.term_began(Counts(waiting=2, writes=3))
    del first
    gc.collect()
    page = metrics.page.text("")
    assert "serving_controller_writes_total 8.0" in page
    assert "serving_reconcile_queue_depth 2.0" in page
    assert former() is None
