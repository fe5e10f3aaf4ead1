"""``python -m serving`` is the command ``serving``."""

from serving.tools.cli.main import main

if __name__ == "__main__":
    main()
