"""``python -m mutarray`` is the command line."""

import sys

from mutarray.cli import main

if __name__ == "__main__":
    sys.exit(main())
