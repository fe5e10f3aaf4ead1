"""Whether activators do what a service's status says: they hear of it some milliseconds after it is written.

They are asked at the service's own address how they share its host out (``serving.model.split``).
"""

import contextlib
import http.client
import time
from http import HTTPStatus

from serving.cli.services.url import ServiceAddress
from serving.model.objects import Object, nested
from serving.model.split import split_digest

_PAUSE_S = 0.01
# So many answers in a row: several activators take turns at one port.
_AGREEING = 4


def until_in_force(address: ServiceAddress, service: Object, *, within_s: float) -> bool:
    """Wait until requests are shared out as the status says; False if they are not in time."""
    deadline_s = time.monotonic() + within_s
    targets = nested(service, "status", "traffic") or ()
    expected = split_digest((str(one.get("revisionName")), one.get("percent") or 0) for one in targets)
    agreeing = 0
    while agreeing < _AGREEING:
        if time.monotonic() > deadline_s:
            return False
        if _split_at(address, within_s) == expected:
            agreeing += 1
        else:
            agreeing = 0
            time.sleep(_PAUSE_S)
    return True


def _split_at(address: ServiceAddress, timeout_s: float) -> str:
    """What an activator says of a host; "" when it says nothing."""
    connection = http.client.HTTPConnection(address.connect_host, address.connect_port, timeout=timeout_s)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/", headers={"Host": address.host, "K-Network-Probe": "probe"})
        answer = connection.getresponse()
        return answer.read().decode("latin-1") if answer.status == HTTPStatus.OK else ""
    return ""
