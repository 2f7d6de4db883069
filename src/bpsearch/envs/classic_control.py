"""Gymnasium's CartPole-v1, Acrobot-v1 and Pendulum-v1 as compiled environments.

The same constants, integrators, rewards, ends and start distributions, so that an agent trained there has the same
value here, up to rounding: Gymnasium's own state has 64 bit, and so have these with `dtype=np.float64`; by default they
simulate in 32 bit.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_discount, check_integer
from bpsearch._core.jaxtools import pytree
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.trigonometry import sin_cos

_STATIC = ("horizon", "discount", "dtype")


@dataclass(frozen=True, eq=False)
class _Classic(CompiledEnv):
    """What the three share.

    Attributes:
        horizon: the number of steps after which Gymnasium truncates an episode.
        discount: γ.
        dtype: the type of the simulation.
    """

    horizon: int
    discount: float = 1.0
    dtype: np.dtype[Any] = np.dtype(np.float32)  # noqa: RUF009

    def __post_init__(self) -> None:
        object.__setattr__(self, "horizon", check_integer("horizon", self.horizon))
        object.__setattr__(self, "discount", check_discount(self.discount))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def _uniform(self, key: Array, *limits: float) -> Array:
        """A vector whose components are uniform on ± their limits."""
        bounds = np.array(limits, self.dtype)
        return jax.random.uniform(key, bounds.shape, self.dtype, -bounds, bounds)

    def _box(self, *limits: float) -> gymnasium.spaces.Box:
        bounds = np.array(limits, self.dtype)
        return gymnasium.spaces.Box(-bounds, bounds, dtype=self.dtype.type)


class ClassicCartPoleState(NamedTuple):
    """Position and velocity of the cart, angle of the pole (0 upright) and its rate."""

    x: Array
    x_dot: Array
    theta: Array
    theta_dot: Array


_CART_MASS, _POLE_MASS, _HALF_LENGTH = 1.0, 0.1, 0.5
_FORCE, _CART_STEP, _CART_GRAVITY = 10.0, 0.02, 9.8
_MAX_POSITION, _MAX_ANGLE = 2.4, math.radians(12.0)


@pytree(static=_STATIC)
@dataclass(frozen=True, eq=False)
class ClassicCartPole(_Classic):
    """CartPole-v1: a cart pushed left (0) or right (1) with 10 N is to balance its pole; 1 for every step.

    With the total mass M, the pole's mass m and half length l, and f = (F + m l θ̇² sin θ) / M:

        θ̈ = (g sin θ − f cos θ) / (l (4/3 − m cos² θ / M)),    ẍ = f − m l θ̈ cos θ / M

    integrated by explicit Euler (positions move by the old velocities) with steps of 0.02 s. The episode ends when
    |x| > 2.4 or |θ| > 12°; all components start uniform on ± 0.05.
    """

    horizon: int = 500

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """[x, ẋ, θ, θ̇]; twice the limits that end an episode."""
        return self._box(2.0 * _MAX_POSITION, np.inf, 2.0 * _MAX_ANGLE, np.inf)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """0 pushes left, 1 right."""
        return gymnasium.spaces.Discrete(2)

    def reset(self, key: Array) -> ClassicCartPoleState:
        """Draw S_0: nearly upright and at rest."""
        return ClassicCartPoleState(*self._uniform(key, 0.05, 0.05, 0.05, 0.05))

    def observe(self, state: ClassicCartPoleState) -> Array:
        """[x, ẋ, θ, θ̇]."""
        return jnp.stack(state, axis=-1)

    def step(self, key: Array, state: ClassicCartPoleState, action: Array) -> tuple[ClassicCartPoleState, Array, Array]:
        """Push for 0.02 s."""
        mass = _CART_MASS + _POLE_MASS
        sin, cos = sin_cos(state.theta)
        force = _FORCE * (2.0 * jnp.asarray(action).astype(self.dtype) - 1.0)
        push = (force + _POLE_MASS * _HALF_LENGTH * state.theta_dot**2 * sin) / mass
        inertia = _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * cos**2 / mass)
        theta_ddot = (_CART_GRAVITY * sin - cos * push) / inertia
        x_ddot = push - _POLE_MASS * _HALF_LENGTH * theta_ddot * cos / mass
        rates = ClassicCartPoleState(state.x_dot, x_ddot, state.theta_dot, theta_ddot)
        after = ClassicCartPoleState(*(value + _CART_STEP * rate for value, rate in zip(state, rates, strict=True)))
        ended = (jnp.abs(after.x) > _MAX_POSITION) | (jnp.abs(after.theta) > _MAX_ANGLE)
        return after, jnp.ones((), self.dtype), ended


class ClassicAcrobotState(NamedTuple):
    """Angle of the first link (0 hanging down), angle of the second relative to the first, and their rates."""

    theta_1: Array
    theta_2: Array
    omega_1: Array
    omega_2: Array


_ACROBOT_STEP, _ACROBOT_GRAVITY = 0.2, 9.8
_LINK, _LINK_CENTER, _LINK_MASS, _LINK_INERTIA = 1.0, 0.5, 1.0, 1.0
_MAX_OMEGA_1, _MAX_OMEGA_2 = 4.0 * math.pi, 9.0 * math.pi


@pytree(static=_STATIC)
@dataclass(frozen=True, eq=False)
class ClassicAcrobot(_Classic):
    """Acrobot-v1: a torque of −1, 0 or 1 N m between two links is to raise the tip by one length; −1 until it does.

    The equations are those of Sutton and Barto's book, integrated by one step of the classical Runge–Kutta method over
    0.2 s; then the angles are wrapped to ±π and the rates limited to ±4π and ±9π. The step that reaches the height,
    −cos θ_1 − cos(θ_1 + θ_2) > 1, pays 0 and ends the episode. All components start uniform on ± 0.1.
    """

    horizon: int = 500

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """[cos θ_1, sin θ_1, cos θ_2, sin θ_2, ω_1, ω_2]."""
        return self._box(1.0, 1.0, 1.0, 1.0, _MAX_OMEGA_1, _MAX_OMEGA_2)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """The torque plus 1."""
        return gymnasium.spaces.Discrete(3)

    def reset(self, key: Array) -> ClassicAcrobotState:
        """Draw S_0: both links hang down, nearly at rest."""
        return ClassicAcrobotState(*self._uniform(key, 0.1, 0.1, 0.1, 0.1))

    def observe(self, state: ClassicAcrobotState) -> Array:
        """[cos θ_1, sin θ_1, cos θ_2, sin θ_2, ω_1, ω_2]."""
        (sin_1, cos_1), (sin_2, cos_2) = sin_cos(state.theta_1), sin_cos(state.theta_2)
        directions = (jnp.clip(part, -1.0, 1.0) for part in (cos_1, sin_1, cos_2, sin_2))
        return jnp.stack([*directions, state.omega_1, state.omega_2], axis=-1)

    def step(self, key: Array, state: ClassicAcrobotState, action: Array) -> tuple[ClassicAcrobotState, Array, Array]:
        """Apply the torque for 0.2 s."""
        torque = jnp.asarray(action).astype(self.dtype) - 1.0

        def moved(rates: ClassicAcrobotState, time: float) -> ClassicAcrobotState:
            return ClassicAcrobotState(*(value + time * rate for value, rate in zip(state, rates, strict=True)))

        k_1 = _acrobot_rates(state, torque)
        k_2 = _acrobot_rates(moved(k_1, _ACROBOT_STEP / 2.0), torque)
        k_3 = _acrobot_rates(moved(k_2, _ACROBOT_STEP / 2.0), torque)
        k_4 = _acrobot_rates(moved(k_3, _ACROBOT_STEP), torque)
        total = ClassicAcrobotState(*(a + 2.0 * (b + c) + d for a, b, c, d in zip(k_1, k_2, k_3, k_4, strict=True)))
        after = moved(total, _ACROBOT_STEP / 6.0)
        after = ClassicAcrobotState(
            _wrap(after.theta_1),
            _wrap(after.theta_2),
            jnp.clip(after.omega_1, -_MAX_OMEGA_1, _MAX_OMEGA_1),
            jnp.clip(after.omega_2, -_MAX_OMEGA_2, _MAX_OMEGA_2),
        )
        height = -sin_cos(after.theta_1)[1] - sin_cos(after.theta_1 + after.theta_2)[1]
        ended = height > 1.0
        return after, ended.astype(self.dtype) - 1.0, ended


def _acrobot_rates(state: ClassicAcrobotState, torque: Array) -> ClassicAcrobotState:
    """(ω_1, ω_2, ω̇_1, ω̇_2), with angles relative to the link before."""
    coupling = _LINK_MASS * _LINK * _LINK_CENTER
    own = _LINK_MASS * _LINK_CENTER**2 + _LINK_INERTIA  # a link about its own joint
    sin_2, cos_2 = sin_cos(state.theta_2)
    inertia_1 = 2.0 * own + _LINK_MASS * _LINK**2 + 2.0 * coupling * cos_2
    inertia_12 = own + coupling * cos_2
    weight_2 = _LINK_MASS * _LINK_CENTER * _ACROBOT_GRAVITY * sin_cos(state.theta_1 + state.theta_2)[0]
    weight_1 = _LINK_MASS * (_LINK_CENTER + _LINK) * _ACROBOT_GRAVITY * sin_cos(state.theta_1)[0] + weight_2
    load_1 = weight_1 - coupling * sin_2 * state.omega_2 * (state.omega_2 + 2.0 * state.omega_1)
    load_2 = weight_2 + coupling * sin_2 * state.omega_1**2
    share = inertia_12 / inertia_1
    omega_dot_2 = (torque + share * load_1 - load_2) / (own - share * inertia_12)
    omega_dot_1 = -(inertia_12 * omega_dot_2 + load_1) / inertia_1
    return ClassicAcrobotState(state.omega_1, state.omega_2, omega_dot_1, omega_dot_2)


class PendulumState(NamedTuple):
    """The angle (0 upright), which counts full turns, and its rate."""

    theta: Array
    theta_dot: Array


_PENDULUM_STEP, _PENDULUM_GRAVITY = 0.05, 10.0
_MAX_TORQUE, _MAX_SPEED = 2.0, 8.0


@pytree(static=_STATIC)
@dataclass(frozen=True, eq=False)
class Pendulum(_Classic):
    """Pendulum-v1: a torque of at most 2 N m is to raise and hold a rod of mass and length 1.

    θ̈ = 3/2 g sin θ + 3 u, velocity first, in steps of 0.05 s, the rate limited to ± 8. A step pays
    −(θ² + 0.1 θ̇² + 0.001 u²) of the state before it, with θ wrapped to ±π. Nothing ends an episode but the horizon. It
    starts uniform on θ ± π, θ̇ ± 1. The torque is clipped by the environment, so a policy may draw any number.
    """

    horizon: int = 200

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """[cos θ, sin θ, θ̇]."""
        return self._box(1.0, 1.0, _MAX_SPEED)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """The torque that is applied; what lies outside is clipped."""
        return self._box(_MAX_TORQUE)

    def reset(self, key: Array) -> PendulumState:
        """Draw S_0: anywhere on the circle."""
        return PendulumState(*self._uniform(key, math.pi, 1.0))

    def observe(self, state: PendulumState) -> Array:
        """[cos θ, sin θ, θ̇]."""
        sin, cos = (jnp.clip(part, -1.0, 1.0) for part in sin_cos(state.theta))
        return jnp.stack([cos, sin, state.theta_dot], axis=-1)

    def step(self, key: Array, state: PendulumState, action: Array) -> tuple[PendulumState, Array, Array]:
        """Apply the clipped torque for 0.05 s."""
        torque = jnp.clip(jnp.asarray(action, self.dtype)[0], -_MAX_TORQUE, _MAX_TORQUE)
        cost = _wrap(state.theta) ** 2 + 0.1 * state.theta_dot**2 + 0.001 * torque**2
        acceleration = 1.5 * _PENDULUM_GRAVITY * sin_cos(state.theta)[0] + 3.0 * torque
        theta_dot = jnp.clip(state.theta_dot + _PENDULUM_STEP * acceleration, -_MAX_SPEED, _MAX_SPEED)
        after = PendulumState(state.theta + _PENDULUM_STEP * theta_dot, theta_dot)
        return after, -cost, jnp.zeros((), bool)


def classic_cartpole(horizon: int = 500, discount: float = 1.0, dtype: DTypeLike = np.float32) -> ClassicCartPole:
    """Gymnasium's CartPole-v1, compiled."""
    return ClassicCartPole(horizon, discount, np.dtype(dtype))


def classic_acrobot(horizon: int = 500, discount: float = 1.0, dtype: DTypeLike = np.float32) -> ClassicAcrobot:
    """Gymnasium's Acrobot-v1, compiled."""
    return ClassicAcrobot(horizon, discount, np.dtype(dtype))


def pendulum(horizon: int = 200, discount: float = 1.0, dtype: DTypeLike = np.float32) -> Pendulum:
    """Gymnasium's Pendulum-v1, compiled."""
    return Pendulum(horizon, discount, np.dtype(dtype))


def _wrap(angle: Array) -> Array:
    """The same direction in [−π, π)."""
    return jnp.mod(angle + math.pi, 2.0 * math.pi) - math.pi
