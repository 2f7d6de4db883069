"""BPG on cart-pole swing-up in plain vectorized NumPy with hand-written backpropagation: the program to beat."""

import numpy as np

from bpsearch.envs.cartpole_swingup import (
    CART_MASS,
    CENTER,
    GRAVITY,
    MAX_POSITION,
    PIVOT_INERTIA,
    POLE_MASS,
    START_HIGH,
    START_LOW,
    TIME_STEP,
)

REAL = np.float32


class NumPyBPG:
    """One trial, float32 but for the sums of log-ratios and the score weights."""

    def __init__(self, policy, episodes, horizon, step_size=1e-3, seed=0):
        self.evaluation = [np.ascontiguousarray(a.T) for pair in policy.parameters[:-1] for a in pair] + [
            np.array(policy.log_std)
        ]
        self.behavior = [a.copy() for a in self.evaluation]
        self.episodes, self.horizon, self.step_size = episodes, horizon, step_size
        self.random = np.random.default_rng(seed)
        self.baseline = 0.0

    def sample(self):
        """Observations (T, N, 4), actions (T, N, 1), rewards, log-probabilities and mask (T, N)."""
        n, horizon, random = self.episodes, self.horizon, self.random
        start = random.random((4, n), dtype=REAL)
        low, high = (np.array(b, REAL)[:, None] for b in (START_LOW, START_HIGH))
        x, x_dot, theta, theta_dot = low + (high - low) * start
        running = np.ones(n, bool)
        observations, actions = np.empty((horizon, n, 4), REAL), np.empty((horizon, n, 1), REAL)
        rewards, log_probs = np.zeros((horizon, n), REAL), np.zeros((horizon, n), REAL)
        mask = np.zeros((horizon, n), bool)
        for t in range(horizon):
            mask[t] = running
            observations[t] = np.stack([x, x_dot, theta, theta_dot], axis=1)
            mean, _ = forward(self.behavior, observations[t])
            noise = random.standard_normal((n, 1), dtype=REAL)
            actions[t] = mean + np.exp(self.behavior[-1]) * noise
            log_probs[t] = np.where(running, log_density(self.behavior, mean, actions[t]), 0)
            moved = cartpole(x, x_dot, theta, theta_dot, np.clip(actions[t, :, 0], -10, 10))
            x, x_dot, theta, theta_dot = (
                np.where(running, new, old) for new, old in zip(moved, (x, x_dot, theta, theta_dot), strict=True)
            )
            outside = np.abs(x) > REAL(MAX_POSITION)
            rewards[t] = np.where(running, np.where(outside, REAL(-1000), np.cos(theta)), 0)
            running = running & ~outside
        return observations, actions, rewards, log_probs, mask

    def iterate(self):
        """Sample, log-ratios, Theorem 1, gradient, step."""
        observations, actions, rewards, log_probs, mask = self.sample()
        # Step by step rather than over all steps at once: one step's arrays stay in cache, which is faster.
        evaluated = np.empty(mask.shape, REAL)
        for t in range(self.horizon):
            evaluated[t] = log_density(self.evaluation, forward(self.evaluation, observations[t])[0], actions[t])
        log_ratios = np.where(mask, evaluated.astype(np.float64) - log_probs, 0.0)
        values = np.exp(log_ratios.sum(axis=0)) * rewards.sum(axis=0, dtype=np.float64)
        weights = np.where(mask, -(values**2) - self.baseline, 0.0)
        self.baseline = -np.mean(values**2)
        gradient = [np.zeros_like(p) for p in self.behavior]
        for t in range(self.horizon):
            for total, part in zip(
                gradient, backward(self.behavior, observations[t], actions[t], weights[t].astype(REAL)), strict=True
            ):
                total += part
        rate = self.step_size / np.mean(values**2) / self.episodes
        self.behavior = [p - REAL(rate) * g for p, g in zip(self.behavior, gradient, strict=True)]
        return values


def forward(parameters, observations):
    w1, b1, w2, b2, w3, b3, _ = parameters
    h1 = np.tanh(observations @ w1 + b1)
    h2 = np.tanh(h1 @ w2 + b2)
    return h2 @ w3 + b3, (h1, h2)


def log_density(parameters, mean, actions):
    log_std = parameters[-1]
    z = (actions - mean) * np.exp(-log_std)
    return -0.5 * (z * z).sum(axis=-1) - log_std.sum() - REAL(0.5 * np.log(2 * np.pi)) * log_std.size


def backward(parameters, observations, actions, weights):
    """The score: Σ c ∇log π, by hand."""
    _, _, w2, _, w3, _, log_std = parameters
    mean, (h1, h2) = forward(parameters, observations)
    z = (actions - mean) * np.exp(-log_std)
    d_log_std = (weights[:, None] * (z * z - 1)).sum(axis=0)
    d3 = weights[:, None] * z * np.exp(-log_std)
    d2 = (d3 @ w3.T) * (1 - h2 * h2)
    d1 = (d2 @ w2.T) * (1 - h1 * h1)
    return [observations.T @ d1, d1.sum(0), h1.T @ d2, d2.sum(0), h2.T @ d3, d3.sum(0), d_log_std]


def cartpole(x, x_dot, theta, theta_dot, force):
    dt, total = REAL(TIME_STEP), REAL(CART_MASS + POLE_MASS)
    coupling, inertia = REAL(POLE_MASS * CENTER), REAL(PIVOT_INERTIA)
    sin, cos = np.sin(theta), np.cos(theta)
    push = force - coupling * sin * theta_dot * theta_dot
    torque = coupling * REAL(GRAVITY) * sin
    determinant = total * inertia - (coupling * cos) ** 2
    x_dot = x_dot + dt * (inertia * push + coupling * cos * torque) / determinant
    theta_dot = theta_dot + dt * (total * torque + coupling * cos * push) / determinant
    return x + dt * x_dot, x_dot, theta + dt * theta_dot, theta_dot
