"""`python -m memtide` is the command line."""

import sys

from memtide.cli import main

sys.exit(main())
