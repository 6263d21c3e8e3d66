"""``python -m dpjax`` is the command ``dpjax``."""

import sys

from dpjax.cli import main

if __name__ == "__main__":
    sys.exit(main())
