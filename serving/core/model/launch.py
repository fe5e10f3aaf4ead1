"""Constants shared by a daemon and its parent process."""

USAGE_EXIT = 2
"""Exit code for invalid options, settings or state, where a restart with the same input fails again."""

KEY_FILE_VARIABLE = "SERVING_KEY_FILE"
"""Environment variable with the path of the cluster key."""

ACME_DIRECTORY_VARIABLE = "SERVING_ACME_DIRECTORY"
"""Environment variable with the directory URL of the ACME server, which ``serving up --acme`` sets."""

ACME_CHALLENGES_VARIABLE = "SERVING_ACME_CHALLENGES"
"""Environment variable with the folder of HTTP-01 challenges: a file for each token, with its response."""

ACME_ISSUER = "acme"
"""The name of the issuer in Certificates that ``serving up --acme`` issues."""
