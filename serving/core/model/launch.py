"""Constants shared by a daemon and its parent process."""

USAGE_EXIT = 2
"""Exit code for invalid options, settings or state, where a restart with the same input fails again."""

KEY_FILE_VARIABLE = "SERVING_KEY_FILE"
"""Environment variable with the path of the cluster key."""
