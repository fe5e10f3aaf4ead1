"""What two gauges on an app's page of metrics cost its queue-proxy; the peer is prometheus-client's parser of the whole page."""

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from bench.parts.timing import Comparison
from serving.queueproxy.gauges import read_page

NAMES = ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
# Lines of histograms, as on the page of a model server: 100 KB.
LINES, BUCKETS = 1350, 20
READ_MAX_US = 1000


def rows() -> Iterator[Comparison]:
    """One reading of the page."""
    lines = [
        f'vllm:metric_{number // BUCKETS}_bucket{{engine="0",le="{number % BUCKETS}",model_name="meta-llama/Llama"}} {number}.0'
        for number in range(LINES)
    ]
    text = "\n".join([*lines, *(f'{name}{{engine="0"}} 0.5' for name in NAMES), ""])
    page = text.encode()
    yield Comparison(
        name=f"gauges: two of a page of {len(page) // 1000} KB",
        ours=lambda: read_page(page, NAMES),
        peer=lambda: list(text_string_to_metric_families(text)),
        us_max=READ_MAX_US,
    )
