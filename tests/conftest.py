"""Set before anything imports JAX."""

import os

# Most of the suite's time is compilation, and a little less optimization takes a fifth less of it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")
