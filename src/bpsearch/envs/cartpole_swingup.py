"""Cart-pole swing-up: the paper's first continuous task (section 5.2), with the constants of rllab's model."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_discount, check_integer, check_real
from bpsearch._core.jaxtools import pytree
from bpsearch.envs.base import CompiledEnv, Drawable
from bpsearch.envs.drawing import Canvas
from bpsearch.envs.trigonometry import sin_cos

CART_MASS, POLE_MASS = 1.0, 0.1
POLE_LENGTH, CENTER = 1.0, 0.5  # the pole's center of mass is `CENTER` from the pivot
PIVOT_INERTIA = 0.0084167 + POLE_MASS * CENTER**2
GRAVITY = 10.0
TIME_STEP = 0.05
MAX_FORCE = 10.0
MAX_POSITION = 3.0
START_LOW = (-1.0, -2.0, np.pi - 1.0, -3.0)
START_HIGH = (1.0, 2.0, np.pi + 1.0, 3.0)


class CartPoleState(NamedTuple):
    """Position and velocity of the cart, angle (0 upright, counter-clockwise positive) and its rate."""

    x: Array
    x_dot: Array
    theta: Array
    theta_dot: Array


@pytree(static=("horizon", "discount", "out_of_bounds_reward", "dtype"))
@dataclass(frozen=True, eq=False)
class CartPoleSwingUp(CompiledEnv, Drawable):
    """A cart on a rail swings up the pole that hangs from it, by a horizontal force of at most 10 N.

    With masses M and m, center of mass at l and moment of inertia J about the pivot:

        (M + m) ẍ − m l cos θ θ̈ + m l sin θ θ̇² = F
        J θ̈ − m l cos θ ẍ = m g l sin θ

    integrated by semi-implicit Euler (velocities first) with one step of 0.05 s per action, as rllab's engine does.
    Observations are [x, ẋ, θ, θ̇] with the raw angle; the first state is uniform over x ± 1, ẋ ± 2, θ π ± 1, θ̇ ± 3.
    The reward after a step is cos θ, or `out_of_bounds_reward` if |x| > 3, which ends the episode. The force is
    clipped by the environment, so a policy may draw any number.

    Attributes:
        horizon: the largest number of steps L.
        discount: γ.
        out_of_bounds_reward: the paper's −1000; rllab has −100.
        dtype: the type of the simulation.
    """

    horizon: int = 50
    discount: float = 1.0
    out_of_bounds_reward: float = -1000.0
    dtype: np.dtype[Any] = np.dtype(np.float32)  # noqa: RUF009

    def __post_init__(self) -> None:
        object.__setattr__(self, "horizon", check_integer("horizon", self.horizon))
        object.__setattr__(self, "discount", check_discount(self.discount))
        object.__setattr__(self, "out_of_bounds_reward", check_real("out_of_bounds_reward", self.out_of_bounds_reward))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """[x, ẋ, θ, θ̇]; no component is bounded, for the last observation is beyond the end of the rail."""
        return gymnasium.spaces.Box(-np.inf, np.inf, (4,), self.dtype.type)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """The force in newton that is applied; what lies outside is clipped."""
        return gymnasium.spaces.Box(-MAX_FORCE, MAX_FORCE, (1,), self.dtype.type)

    def reset(self, key: Array) -> CartPoleState:
        """Draw S_0: the pole hangs down, more or less."""
        low, high = (np.array(bound, self.dtype) for bound in (START_LOW, START_HIGH))
        return CartPoleState(*jax.random.uniform(key, (4,), self.dtype, low, high))

    def observe(self, state: CartPoleState) -> Array:
        """[x, ẋ, θ, θ̇]."""
        return jnp.stack(state, axis=-1)

    def step(self, key: Array, state: CartPoleState, action: Array) -> tuple[CartPoleState, Array, Array]:
        """Apply the clipped force for 0.05 s."""
        force = jnp.clip(jnp.asarray(action, self.dtype)[0], -MAX_FORCE, MAX_FORCE)
        state = advance(state, force, TIME_STEP)
        outside = jnp.abs(state.x) > MAX_POSITION
        return state, jnp.where(outside, self.out_of_bounds_reward, sin_cos(state.theta)[1]), outside

    def draw(self, state: CartPoleState) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The rail, the cart and the pole."""
        x, theta = float(state.x), float(state.theta)
        canvas = Canvas(width=600, height=300, left=-MAX_POSITION - 0.5, right=MAX_POSITION + 0.5, bottom=-1.6)
        canvas.segment((-MAX_POSITION, 0.0), (MAX_POSITION, 0.0), 0.02, (150, 150, 150))
        for end in (-MAX_POSITION, MAX_POSITION):
            canvas.segment((end, -0.12), (end, 0.12), 0.02, (150, 150, 150))
        canvas.segment((x - 0.15, 0.0), (x + 0.15, 0.0), 0.14, (60, 80, 110))
        tip = (x - POLE_LENGTH * np.sin(theta), POLE_LENGTH * np.cos(theta))
        canvas.segment((x, 0.0), tip, 0.05, (200, 110, 50))
        canvas.segment((x, 0.0), (x, 0.0), 0.04, (240, 240, 240))
        return canvas.image()


def cartpole_swingup(
    horizon: int = 50, discount: float = 1.0, out_of_bounds_reward: float = -1000.0, dtype: DTypeLike = np.float32
) -> CartPoleSwingUp:
    """The cart-pole swing-up of the paper: L = 50, γ = 1, and −1000 for leaving the rail."""
    return CartPoleSwingUp(horizon, discount, out_of_bounds_reward, np.dtype(dtype))


def advance(state: CartPoleState, force: Array, time_step: float) -> CartPoleState:
    """One step of semi-implicit Euler: the accelerations change the velocities, the new velocities the positions."""
    x_ddot, theta_ddot = accelerations(state, force)
    x_dot = state.x_dot + time_step * x_ddot
    theta_dot = state.theta_dot + time_step * theta_ddot
    return CartPoleState(state.x + time_step * x_dot, x_dot, state.theta + time_step * theta_dot, theta_dot)


def accelerations(state: CartPoleState, force: Array) -> tuple[Array, Array]:
    """(ẍ, θ̈), the solution of the two equations of motion."""
    coupling = POLE_MASS * CENTER
    sin, cos = sin_cos(state.theta)
    push = force - coupling * sin * state.theta_dot**2
    torque = coupling * GRAVITY * sin
    determinant = (CART_MASS + POLE_MASS) * PIVOT_INERTIA - (coupling * cos) ** 2
    x_ddot = (PIVOT_INERTIA * push + coupling * cos * torque) / determinant
    theta_ddot = ((CART_MASS + POLE_MASS) * torque + coupling * cos * push) / determinant
    return x_ddot, theta_ddot


def energy(state: CartPoleState) -> Array:
    """½ (M + m) ẋ² − m l cos θ ẋ θ̇ + ½ J θ̇² + m g l cos θ."""
    coupling = POLE_MASS * CENTER
    kinetic = 0.5 * (CART_MASS + POLE_MASS) * state.x_dot**2 + 0.5 * PIVOT_INERTIA * state.theta_dot**2
    return kinetic + coupling * jnp.cos(state.theta) * (GRAVITY - state.x_dot * state.theta_dot)
