"""Constants shared by a daemon and its parent process."""

USAGE_EXIT = 2
"""Exit code for wrong options, settings or state: another start with the same input fails the same way."""

KEY_FILE_VARIABLE = "SERVING_KEY_FILE"
"""Environment variable with the path of the cluster key."""
