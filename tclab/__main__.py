"""`python -m tclab` is the command `tclab`."""

import importlib
import sys

sys.exit(importlib.import_module("tclab.command").main())
