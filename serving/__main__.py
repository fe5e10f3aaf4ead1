"""``python -m serving`` is the command ``serving``."""

from serving.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
