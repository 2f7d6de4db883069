"""How much of the return's variance under each shipped policy comes from the start state, how much from actions."""

import bpsearch as bps
from bpsearch.inference.variance_split import split_variance
from bpsearch.paper.starts import returns_by_start

STARTS, REPEATS = 4000, 50

if __name__ == "__main__":
    for name, env in (("cartpole-swingup", bps.envs.cartpole_swingup()), ("acrobot", bps.envs.acrobot())):
        values = returns_by_start(env, bps.shipped_policy(name), STARTS, REPEATS)
        parts = split_variance(values)
        errors = parts.std_errors
        print(
            f"{name}: mean return {values.mean():.3f}, variance {parts.start + parts.action:.2f} = start state "
            f"{parts.start:.2f} ± {errors[0]:.2f} + action noise {parts.action:.2f} ± {errors[1]:.2f} "
            f"({100 * parts.share:.1f} ± {100 * errors[2]:.1f}% action noise)"
        )
