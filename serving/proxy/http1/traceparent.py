"""Replace ``traceparent``, the one header that a proxy with a span of its own must change.

Input: a head as it came. Output: the head as it goes on, which names another parent.
"""

import msgspec

from serving.proxy.http1.lines import HeaderLine
from serving.proxy.http1.requesthead import RequestHead

_NAME = b"traceparent"


def with_traceparent(head: RequestHead, value: bytes) -> RequestHead:
    """The same head with this traceparent as the only one."""
    # Not read_line: a line that never comes again has no place in its memory.
    line = HeaderLine(name=_NAME, value=value, wire=b"traceparent: %b\r\n" % value, plain=True, matters=False)
    rest = head.without(lambda one: one.name == _NAME)
    return msgspec.structs.replace(rest, lines=[*rest.lines, line], wire=rest.wire + line.wire)
