"""Systems of linear equations."""

import numpy as np
import scipy.linalg.lapack

from bpsearch._core.arrays import NumpyArray


def solve_positive(system: NumpyArray, target: NumpyArray) -> NumpyArray:
    """The solution of a positive definite system, by LAPACK itself: what SciPy does around it can take longer."""
    if not len(target):
        return target
    _, found, failed = scipy.linalg.lapack.dposv(system, target)
    if failed:
        raise np.linalg.LinAlgError(f"a system of {len(target)} equations is not positive definite")
    return np.asarray(found)
