"""Tasks of the adversary for the tests."""

import numpy as np

from benchmarks.adversary.families import FAMILIES, Task, build


def task_of(family: str, seed: int = 0, **parameters: float) -> Task:
    """A drawn task with some parameters given."""
    return build(family, {**FAMILIES[family].draw(np.random.default_rng(seed)), **parameters})
