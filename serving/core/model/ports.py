"""Default ports of the daemons and of the containers that they run, and the highest port."""

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

CONTAINER_PORT = 8080
"""The port of a container that declares none, as in Knative. The app reads it from the variable PORT."""
