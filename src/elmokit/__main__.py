"""`python -m elmokit` is the command `elmokit`."""

import sys

from elmokit.cli import main

sys.exit(main())
