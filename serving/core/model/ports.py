"""Default ports of the daemons and of the containers that they run, and the range of ports."""

import re

PUBLIC_PORT = 8080
INNER_PORT = 8081
TLS_PORT = 8443
API_PORT = 6080
STATS_PORT = 6081
ACTIVATOR_METRICS_PORT = 6082
CONTROL_METRICS_PORT = 6083
DASHBOARD_PORT = 6090

PORT_MAX = 65_535
"""The highest port number of TCP."""

# Python converts no text of more than 4,300 digits.
_PORT = re.compile(r"[0-9]{1,5}")

CONTAINER_PORT = 8080
"""The port of a container that declares none, as in Knative. The app reads it from the variable PORT."""


def port_of(text: str) -> int:
    """The port number in a text; 0 if the text is not a port from 1 to ``PORT_MAX``."""
    return int(text) if _PORT.fullmatch(text) and int(text) <= PORT_MAX else 0
