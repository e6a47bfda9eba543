"""``python -m specplug``."""

import sys

from specplug.cli import main

sys.exit(main())
