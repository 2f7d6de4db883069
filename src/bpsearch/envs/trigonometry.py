"""Sine and cosine together, in a form that the compiler can run in vector registers."""

import jax.numpy as jnp

from bpsearch._core.arrays import Array

# π/2 as a sum whose first two parts have few digits, so that their products with a quadrant's number are exact.
_HALF_PI_PARTS = (1.5703125, 4.837512969970703125e-4, 7.54978995489188216e-8)
# Minimax polynomials on [−π/4, π/4] for 32 bit (S. Moshier's Cephes library).
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def sin_cos(angle: Array) -> tuple[Array, Array]:
    """(sin, cos) of `angle`; 32-bit angles up to some thousands are served to 1e-7.

    With XLA's own sine and cosine a batch of acrobot episodes took four times as long on a CPU. Here the angle is
    reduced to its quadrant and two polynomials are evaluated. Other types take XLA's functions.
    """
    if angle.dtype != jnp.float32:
        return jnp.sin(angle), jnp.cos(angle)
    quadrants = jnp.round(angle * (2.0 / jnp.pi))
    rest = angle
    for part in _HALF_PI_PARTS:
        rest = rest - quadrants * part
    square = rest * rest
    sin = ((_SIN[0] * square + _SIN[1]) * square + _SIN[2]) * square * rest + rest
    cos = ((_COS[0] * square + _COS[1]) * square + _COS[2]) * square * square - 0.5 * square + 1.0
    quadrant = quadrants.astype(jnp.int32)
    odd = (quadrant & 1) == 1
    sin, cos = jnp.where(odd, cos, sin), jnp.where(odd, sin, cos)
    return jnp.where((quadrant & 2) == 0, sin, -sin), jnp.where(((quadrant + 1) & 2) == 0, cos, -cos)
