"""A robot that knows files only: a policy comes in, episodes go out.

The laboratory keeps a study in a file and asks for behavior policies; the robot, a process of its own that could be on
another machine and take its time, runs them. It needs NumPy and Gymnasium, not bpsearch. Two policies are out at once,
and their episodes come back in the wrong order.
"""

import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np

EPISODES = 20


def robot(policy_file, episodes_file, seed):
    """Read a network, run it, write what happened; see `bpsearch.sampling.npz.save_npz` for the names of the arrays."""
    network = dict(np.load(policy_file))
    layers = [(network[f"weight_{i}"], network[f"bias_{i}"]) for i in range(2)]
    env, rng = gymnasium.make("CartPole-v1", max_episode_steps=100), np.random.default_rng(seed)
    observations, actions, rewards, log_probs, lengths, finals = [], [], [], [], [], []
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=1000 * seed + episode)
        ended, start = False, len(rewards)
        while not ended:
            (weight, bias), (last_weight, last_bias) = layers
            logits = last_weight @ np.tanh(weight @ observation + bias) + last_bias
            log_softmax = logits - np.log(np.sum(np.exp(logits)))
            action = int(rng.random() >= np.exp(log_softmax[0]))
            observations.append(observation)
            actions.append(action)
            log_probs.append(log_softmax[action])
            observation, reward, terminated, truncated, _ = env.step(action)
            rewards.append(reward)
            ended = terminated or truncated
        lengths.append(len(rewards) - start)
        finals.append(observation)
    np.savez(
        episodes_file,
        format="bpsearch trajectories 1",
        request=network["request"],  # which request these episodes answer
        lengths=lengths,
        observations=observations,
        actions=actions,
        rewards=rewards,
        log_probs=np.array(log_probs, np.float64),
        final_observations=finals,
    )


def laboratory():
    import bpsearch as bps
    from bpsearch.policies.files import save_policy
    from bpsearch.sampling.npz import load_npz

    env = gymnasium.make("CartPole-v1")
    policy = bps.CategoricalMLP.init(0, env.observation_space, env.action_space, hidden=(16,), adapt="last")
    for turn in range(2):
        # Each time as if the program had been started again: the study is in the file.
        with bps.Study(policy, bps.AdaptiveBPG(), store="study.db") as study:
            for request in (study.ask(), study.ask()):
                save_policy(request.behavior, f"policy-{request.number}.npz", request=request.identity)
        for number in (2 * turn + 1, 2 * turn):
            command = ["robot", f"policy-{number}.npz", f"episodes-{number}.npz", str(number)]
            subprocess.run([sys.executable, __file__, *command], check=True)
            with bps.Study.open("study.db") as study:
                told = load_npz(f"episodes-{number}.npz")
                study.tell(number, told.trajectories, request=told.request)
    with bps.Study.open("study.db", read_only=True) as study:
        print(study.estimate())


if __name__ == "__main__":
    if sys.argv[1:2] == ["robot"]:
        robot(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        laboratory()
