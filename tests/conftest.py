"""How hard hypothesis tries: HYPOTHESIS_PROFILE=thorough for `make test-all`."""

import os

from hypothesis import settings

settings.register_profile("usual", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))
