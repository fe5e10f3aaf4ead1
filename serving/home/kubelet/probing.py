"""One readiness probe by HTTP whose failure is described for people.

The queue-proxy decides readiness and reports only whether the app is ready. The kubelet repeats the probe of an app that
stays unready, to say why.
"""

import asyncio

from serving.aio.netns import open_connection
from serving.queueproxy.podspec import Address, Probe

_STATUS_LINE_BYTES_MAX = 200


async def probe_failure(probe: Probe, app: Address, *, network: str = "") -> str:
    """Send the probe's GET, in the network namespace at a path; "" for a status of 200 to 399, else what happened."""
    host, port = app
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(probe.timeout_s):
            reader, writer = await open_connection(host, port, network=network)
            headers = {"Host": f"{host}:{port}", "User-Agent": "kube-probe/serving", "Connection": "close"}
            lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **dict(probe.headers)}.items())
            writer.write(f"GET {probe.path} HTTP/1.1\r\n{lines}\r\n".encode())
            line = (await reader.readline())[:_STATUS_LINE_BYTES_MAX].decode("latin-1").strip()
    except TimeoutError:
        return f"no answer within {probe.timeout_s:g} s (timeoutSeconds)"
    except (OSError, ValueError) as error:
        return str(error)
    finally:
        if writer is not None:
            writer.transport.abort()
    words = line.split(" ", 2)
    if len(words) > 1 and words[0].startswith("HTTP/1.") and words[1].isdecimal():
        return "" if 200 <= int(words[1]) <= 399 else f"the app answered {' '.join(words[1:])}"
    return f"the answer is not HTTP/1.1: {line!r}" if line else "the app closed the connection"
