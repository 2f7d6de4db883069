"""Acrobot: the paper's second continuous task (section 5.2), with the constants of rllab's double pendulum."""

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
from bpsearch.envs.base import CompiledEnv, Drawable
from bpsearch.envs.drawing import Canvas
from bpsearch.envs.trigonometry import sin_cos

LENGTH, CENTER = 1.0, 0.5  # of each link; its center of mass is `CENTER` from its upper joint
MASS, INERTIA = 0.5, 0.0420833  # of each link, about its center of mass
GRAVITY = 10.0
TIME_STEP = 0.005
STEPS_PER_ACTION = 4
MAX_TORQUE = 50.0
MAX_SPEED = 50.0 * np.pi
_INERTIA_1 = INERTIA + MASS * CENTER**2 + MASS * LENGTH**2
_INERTIA_2 = INERTIA + MASS * CENTER**2
_COUPLING = MASS * LENGTH * CENTER
_GRAVITY_1 = (MASS * CENTER + MASS * LENGTH) * GRAVITY
_GRAVITY_2 = MASS * CENTER * GRAVITY


class AcrobotState(NamedTuple):
    """Absolute angles of the two links (0 hanging down, counter-clockwise positive) and their rates."""

    theta_1: Array
    omega_1: Array
    theta_2: Array
    omega_2: Array


@pytree(static=("horizon", "discount", "dtype"))
@dataclass(frozen=True, eq=False)
class Acrobot(CompiledEnv, Drawable):
    """Two hanging links are to be raised by a torque of at most 50 N m at the joint between them.

    With absolute angles, J_1 and J_2 the links' moments of inertia (the first carries the second's mass at its end),
    k = m L c and Δ = θ_1 − θ_2:

        J_1 ω̇_1 + k cos Δ ω̇_2 + k sin Δ ω_2² + g_1 sin θ_1 = −τ
        J_2 ω̇_2 + k cos Δ ω̇_1 − k sin Δ ω_1² + g_2 sin θ_2 = τ

    An action is held for 0.02 s, integrated by four steps of the classical fourth-order Runge–Kutta method, after each
    of which the rates are limited to ±50π rad/s. The limit is the one of rllab's engine (a quarter turn per 0.01 s);
    without it a lasting full torque spins the links past 500 rad/s, where explicit methods at any affordable step
    gain energy without end.

    Observations are [sin θ_1, cos θ_1, ω_1, sin θ_2, cos θ_2, ω_2]; angles start from N(0, 0.1²), rates from
    N(0, 0.01²). The reward after a step is −‖tip − (0, 2)‖ with the true tip: rllab has the wrong sign in its first
    coordinate. Nothing ends an episode but the horizon. The torque is clipped by the environment, so a policy may draw
    any number.

    Attributes:
        horizon: the number of steps L.
        discount: γ.
        dtype: the type of the simulation.
    """

    horizon: int = 50
    discount: float = 1.0
    dtype: np.dtype[Any] = np.dtype(np.float32)  # noqa: RUF009

    def __post_init__(self) -> None:
        object.__setattr__(self, "horizon", check_integer("horizon", self.horizon))
        object.__setattr__(self, "discount", check_discount(self.discount))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """[sin θ_1, cos θ_1, ω_1, sin θ_2, cos θ_2, ω_2]."""
        bounds = np.array([1.0, 1.0, MAX_SPEED, 1.0, 1.0, MAX_SPEED], self.dtype)
        return gymnasium.spaces.Box(-bounds, bounds, dtype=self.dtype.type)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """The torque in newton metre that is applied; what lies outside is clipped."""
        return gymnasium.spaces.Box(-MAX_TORQUE, MAX_TORQUE, (1,), self.dtype.type)

    def reset(self, key: Array) -> AcrobotState:
        """Draw S_0: both links hang down, nearly at rest."""
        scale = np.array([0.1, 0.01, 0.1, 0.01], self.dtype)
        return AcrobotState(*(scale * jax.random.normal(key, (4,), self.dtype)))

    def observe(self, state: AcrobotState) -> Array:
        """[sin θ_1, cos θ_1, ω_1, sin θ_2, cos θ_2, ω_2]."""
        first, second = ([jnp.clip(v, -1.0, 1.0) for v in sin_cos(a)] for a in (state.theta_1, state.theta_2))
        return jnp.stack([*first, state.omega_1, *second, state.omega_2], axis=-1)

    def step(self, key: Array, state: AcrobotState, action: Array) -> tuple[AcrobotState, Array, Array]:
        """Apply the clipped torque for 0.02 s."""
        torque = jnp.clip(jnp.asarray(action, self.dtype)[0], -MAX_TORQUE, MAX_TORQUE)
        state = jax.lax.fori_loop(0, STEPS_PER_ACTION, lambda _, state: advance(state, torque, TIME_STEP), state)
        x, y = tip(state)
        return state, -jnp.sqrt(x**2 + (y - 2.0 * LENGTH) ** 2), jnp.zeros((), bool)

    def draw(self, state: AcrobotState) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The two links and the point that the tip is to reach."""
        canvas = Canvas(width=400, height=400, left=-2.4, right=2.4, bottom=-2.4)
        joint = (LENGTH * np.sin(float(state.theta_1)), -LENGTH * np.cos(float(state.theta_1)))
        end = tuple(float(value) for value in tip(state))
        canvas.segment((0.0, 2.0 * LENGTH), (0.0, 2.0 * LENGTH), 0.08, (90, 160, 90))
        canvas.segment((0.0, 0.0), joint, 0.07, (60, 80, 110))
        canvas.segment(joint, (end[0], end[1]), 0.07, (200, 110, 50))
        for pivot in ((0.0, 0.0), joint):
            canvas.segment(pivot, pivot, 0.04, (240, 240, 240))
        return canvas.image()


def acrobot(horizon: int = 50, discount: float = 1.0, dtype: DTypeLike = np.float32) -> Acrobot:
    """The acrobot of the paper: L = 50, γ = 1."""
    return Acrobot(horizon, discount, np.dtype(dtype))


def tip(state: AcrobotState) -> tuple[Array, Array]:
    """Where the second link ends, the first joint being the origin and the second axis pointing up."""
    (sin_1, cos_1), (sin_2, cos_2) = sin_cos(state.theta_1), sin_cos(state.theta_2)
    return LENGTH * (sin_1 + sin_2), -LENGTH * (cos_1 + cos_2)


def advance(state: AcrobotState, torque: Array, time_step: float) -> AcrobotState:
    """One step of the classical Runge–Kutta method, with the rates limited at its end."""

    def moved(rates: AcrobotState, factor: float) -> AcrobotState:
        return AcrobotState(*(value + factor * rate for value, rate in zip(state, rates, strict=True)))

    k_1 = derivative(state, torque)
    k_2 = derivative(moved(k_1, 0.5 * time_step), torque)
    k_3 = derivative(moved(k_2, 0.5 * time_step), torque)
    k_4 = derivative(moved(k_3, time_step), torque)
    mean = AcrobotState(*((a + 2.0 * (b + c) + d) for a, b, c, d in zip(k_1, k_2, k_3, k_4, strict=True)))
    after = moved(mean, time_step / 6.0)
    return after._replace(
        omega_1=jnp.clip(after.omega_1, -MAX_SPEED, MAX_SPEED), omega_2=jnp.clip(after.omega_2, -MAX_SPEED, MAX_SPEED)
    )


def derivative(state: AcrobotState, torque: Array) -> AcrobotState:
    """The rates of change (ω_1, ω̇_1, ω_2, ω̇_2), the solution of the two equations of motion."""
    (sin_1, cos_1), (sin_2, cos_2) = sin_cos(state.theta_1), sin_cos(state.theta_2)
    coupling_sin = _COUPLING * (sin_1 * cos_2 - cos_1 * sin_2)
    coupling_cos = _COUPLING * (cos_1 * cos_2 + sin_1 * sin_2)
    on_first = -torque - coupling_sin * state.omega_2**2 - _GRAVITY_1 * sin_1
    on_second = torque + coupling_sin * state.omega_1**2 - _GRAVITY_2 * sin_2
    determinant = _INERTIA_1 * _INERTIA_2 - coupling_cos**2
    return AcrobotState(
        state.omega_1,
        (_INERTIA_2 * on_first - coupling_cos * on_second) / determinant,
        state.omega_2,
        (_INERTIA_1 * on_second - coupling_cos * on_first) / determinant,
    )


def energy(state: AcrobotState) -> Array:
    """½ J_1 ω_1² + ½ J_2 ω_2² + k cos(θ_1 − θ_2) ω_1 ω_2 − g_1 cos θ_1 − g_2 cos θ_2."""
    kinetic = 0.5 * _INERTIA_1 * state.omega_1**2 + 0.5 * _INERTIA_2 * state.omega_2**2
    kinetic += _COUPLING * jnp.cos(state.theta_1 - state.theta_2) * state.omega_1 * state.omega_2
    return kinetic - _GRAVITY_1 * jnp.cos(state.theta_1) - _GRAVITY_2 * jnp.cos(state.theta_2)
