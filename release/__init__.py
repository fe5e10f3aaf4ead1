"""Builds and verifies releases: `make release`, the Containerfile and the documentation site run these modules."""
