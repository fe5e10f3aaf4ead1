"""Default ports of the system, and of the containers that it runs."""

PUBLIC_PORT = 8080
INNER_PORT = 8081
TLS_PORT = 8443
API_PORT = 6080
STATS_PORT = 6081
ACTIVATOR_METRICS_PORT = 6082
CONTROL_METRICS_PORT = 6083
DASHBOARD_PORT = 6090

CONTAINER_PORT = 8080
"""The port of a container that names none, as in Knative: its app finds it in PORT."""
