"""What must work after `pip install`, without anything else: run by `make wheel-test` in empty environments.

python tests/smoke.py            # the core, and the command
python tests/smoke.py --report   # pages and figures, too
"""

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

OPTIONS = ("--env", "bpsearch/Gridworld-v0", "--episodes", "200", "--seed", "0")


def command(*arguments: str, folder: str) -> str:
    program = Path(sys.executable).parent / "bpsearch"
    done = subprocess.run([str(program), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def main() -> None:
    import bpsearch as bps

    assert "site-packages" in bps.__file__, f"not the installed package: {bps.__file__}"
    policy, env = bps.shipped_policy("gridworld-early"), bps.envs.gridworld()
    found = bps.evaluate(policy, env, 500, seed=0)
    low, high = found.interval()
    assert low <= bps.oracle.value(env, policy) <= high, found
    assert found.savings > 1.0, found
    function = bps.evaluate(lambda observation: 0, "CartPole-v1", 50, seed=0)
    assert 8.0 < function.value < 11.0, function
    with tempfile.TemporaryDirectory() as folder:
        assert bps.__version__ in command("--version", folder=folder)
        printed = command("evaluate", "--policy", "gridworld-early", *OPTIONS, "--json", folder=folder)
        assert json.loads(printed)["episodes"] == 200
        report = "--report" in sys.argv
        page = ("--report", "page.html") if report else ()
        text = command("compare", "new=gridworld-converged", "old=gridworld-early", *OPTIONS, *page, folder=folder)
        assert "new is better than old" in text, text
        assert (Path(folder) / "page.html").exists() == report
    if not report:
        assert find_spec("matplotlib") is None, "the core needs no figures"
    print(f"bpsearch {bps.__version__} works, with Python {sys.version.split()[0]}{' and pages' if report else ''}")


if __name__ == "__main__":
    main()
