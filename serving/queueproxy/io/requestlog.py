"""The request log of a queue-proxy: a line for each request, by Knative's template.

A record is taken in the loop when a request ends; its line is made and written in a thread, so that a slow reader of the log stops no
request. A request for which the template has no line, such as an index that is out of range, is counted as dropped.
"""

from collections.abc import Callable

from serving.core.model.gotemplate import TemplateError, parse_template
from serving.core.model.requestlog import ServedRequest, ServingPod, values_of
from serving.net.proxy.forwarding.accesslog import ExchangeLog, write_to_stdout
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.http1.lines import RESERVED
from serving.net.proxy.http1.requesthead import RequestHead
from serving.queueproxy.io.podrequests import is_probe
from serving.queueproxy.podspec import PodSpec


class RequestLog(ExchangeLog[ServedRequest]):
    """Logs the requests of one pod; created only where the log is on."""

    def __init__(self, spec: PodSpec, *, write: Callable[[bytes], object] = write_to_stdout) -> None:
        super().__init__(write=write)
        settings = spec.settings.logging
        self._template = parse_template(settings.request_log_template)
        self._has_probes = settings.enable_probe_request_log
        self._revision = ServingPod(
            name=spec.revision,
            namespace=spec.namespace,
            service=spec.service,
            configuration=spec.configuration,
            pod=spec.pod,
            address=spec.address,
        )

    def _record(self, exchange: Exchange, *, now_s: float) -> ServedRequest | None:
        head = exchange.head
        if is_probe(head) and not self._has_probes:
            return None
        context = exchange.context
        # The Host that the client wrote, if an activator has replaced it.
        host = (context[1] if isinstance(context, tuple) else None) or head.host
        return ServedRequest(
            method=head.method.decode("latin-1"),
            target=head.target.decode("latin-1"),
            host=host.decode("latin-1"),
            protocol="HTTP/2.0" if exchange.is_http2 else f"HTTP/1.{head.minor}",
            client=exchange.peer.address.decode("latin-1"),
            headers=[
                (line.name.decode("latin-1"), line.value.decode("latin-1"))
                for line in head.lines
                if line.name not in RESERVED
            ],
            length=_length(head),
            status=exchange.status,
            size=exchange.response_bytes,
            latency_s=round(now_s - exchange.started_s, 6),
        )

    def _line(self, record: ServedRequest) -> bytes:
        try:
            text = self._template(values_of(record, self._revision))
        except TemplateError:
            self.dropped_count += 1
            return b""
        return text.encode("utf-8", "surrogatepass").removesuffix(b"\n") + b"\n"


def _length(head: RequestHead) -> int:
    """The length of a body like Go's ``ContentLength``: -1 if unknown."""
    return -1 if head.chunked else head.content_length or 0
