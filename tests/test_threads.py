"""Studies in several threads of one process."""

import subprocess
import sys

import pytest

SCRIPT = """
import threading
import bpsearch as bps

start = threading.Barrier(2)
values = {}

def work(name):
    study = bps.Study(bps.shipped_policy("gridworld-early"), bps.AdaptiveBPG(), seed=3)
    start.wait()
    values[name] = study.run(bps.envs.gridworld(), episodes=300).value

threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert values["a"] == values["b"], values
print("both ended")
"""


@pytest.mark.slow
def test_two_adaptive_studies_in_two_threads_end():
    """They used to wait for each other's parts in XLA's pool of threads, on two cores every time."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100)
    assert done.stdout == "both ended\n", done.stderr
