"""Random streams: a pure function of the user's seed, the batch and the chunk of episodes, or the episode."""

import jax
import numpy as np

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_seed


def batch_key(seed: int, batch: int = 0) -> Array:
    """The key of one batch of episodes; batches and seeds never share a stream."""
    return jax.random.fold_in(jax.random.key(check_seed(seed), impl="threefry2x32"), batch)


def episode_numbers(seed: int, batch: int, episode: int, repeats: int = 1) -> tuple[int, np.random.Generator]:
    """What one episode in a Gymnasium environment is made of: the environment's seed, and a stream of action noise.

    No two episodes share a stream, as those of the seeds 0 and 1 do if an environment counts its seeds up. With
    `repeats`, so many neighbors have the environment's seed of the first of them.
    """
    entropy = check_seed(seed)

    def start(number: int) -> tuple[int, np.random.Generator]:
        sequence = np.random.SeedSequence(entropy, spawn_key=(batch, number))
        stream = np.random.Generator(np.random.PCG64(sequence))
        return int(stream.integers(2**32)), stream

    own, stream = start(episode)
    first = episode - episode % repeats
    return own if first == episode else start(first)[0], stream


def offered_starts(seed: int, batch: int, episode: int, count: int) -> tuple[list[int], float]:
    """Seeds of the starts from which one is chosen for an episode, and the number in [0, 1) that chooses."""
    sequence = np.random.SeedSequence(check_seed(seed), spawn_key=(batch, episode, 2))
    *seeds, high, low = (int(number) for number in sequence.generate_state(count + 2))
    return seeds, ((high << 21) + (low >> 11)) / 2.0**53


def reset_seeds(seed: int, batch: int, episode: int, count: int) -> list[int]:
    """Seeds of further resets for one episode: those of no episode, and no others'."""
    sequence = np.random.SeedSequence(check_seed(seed), spawn_key=(batch, episode, 1))
    return [int(number) for number in sequence.generate_state(count)]
