"""A costly failure in fewer than one of 200 episodes: its price from 2,000 episodes.

    python examples/rare_failure.py

A courier crosses a ridge of eight steps and is paid for every step. At the narrowest it may slip: an action that the
policy takes with a probability of 0.4%, at a cost of 1000. Monte Carlo sees about eight failures in 2,000 episodes, and
its estimate hangs on how many. The default search learns which action the failures come from, takes it more often, and
weights the episodes accordingly. It can learn only from failures that it has seen, two at least: where each failure
has a cause of its own, it saves little. The probability of the failure is estimated through levels, which look for
failures that episodes of the policy do not show.
"""

import numpy as np

import bpsearch as bps
from bpsearch.report.words import certificate, interval_kind

STEPS, NARROW, SLIP, COST = 8, 5, 0.004, 1000.0


def ridge() -> bps.TabularMDP:
    """States 0 to 7 lie on the ridge, 8 is its end, 9 the valley. Actions: walk, run (they pay 1 and 1.5), slip.

    Away from the narrowest step a slip costs a step of time.
    """
    states = STEPS + 2
    transitions, rewards = np.zeros((states, 3, states)), np.zeros((states, 3, states))
    for state in range(STEPS):
        transitions[state, :2, state + 1] = 1.0
        transitions[state, 2, STEPS + 1 if state == NARROW else state] = 1.0
        rewards[state, 0, state + 1], rewards[state, 1, state + 1] = 1.0, 1.5
    rewards[NARROW, 2, STEPS + 1] = -COST
    terminal = np.arange(states) >= STEPS
    return bps.TabularMDP(transitions, rewards, np.eye(states)[0], terminal, horizon=2 * STEPS)


def courier() -> bps.SoftmaxTable:
    """Walks and runs at random, and slips with a probability of 0.4% per step."""
    return bps.SoftmaxTable.from_probabilities(np.tile([0.5 - SLIP / 2, 0.5 - SLIP / 2, SLIP], (STEPS + 2, 1)))


def main() -> None:
    env, policy = ridge(), courier()
    print(f"probability of a failure: {SLIP:.2%}")
    print(f"exact value: {bps.oracle.value(env, policy):.4f}")
    for method in ("mc", "bpg"):
        print(f"{method}: {bps.evaluate(policy, env, episodes=2000, method=method, seed=0)}")
    found = bps.evaluate(policy, env, episodes=2000, failure="return < -100", seed=0)
    print(f"the failure itself: {found}")
    print(f"what the interval promises: {interval_kind(found)}")
    print(f"what can be certified: at most {found.upper_bound():.4f} at 95%; {certificate(found)}")


if __name__ == "__main__":
    main()
