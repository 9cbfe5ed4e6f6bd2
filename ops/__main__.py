"""`python -m ops`, for an environment without the launcher `decide`."""

import sys

from ops.cli import main

if __name__ == "__main__":
    sys.exit(main())
