"""What a person at a terminal meets: a live display, Ctrl-C, shell completion, exit codes, one line per mistake."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from test_cli import AGENT, PROGRAM, bpsearch

# Runs a command in a pseudo-terminal of its own; what it is sent is typed there, Ctrl-C included.
IN_TERMINAL = (
    "import os, pty, signal, sys\n"
    "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"  # a parent in the background may have it ignored
    "sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
)
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
GRIDWORLD = ("evaluate", "--env", "bpsearch/Gridworld-v0", "--policy", "gridworld-early")
# Episodes; the estimate with its interval; the variance ratio; the time left, once there are two batches.
LIVE = r"{}/{} [\d.]+ ± [\d.]+, variance \d+\.\d\d of Monte Carlo's \d:\d\d:\d\d"


@contextmanager
def terminal(*arguments, cwd):
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    command = [sys.executable, "-c", IN_TERMINAL, str(PROGRAM), *arguments]
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def shown(process, until=None):
    """What the terminal has shown, without control characters: all of it, or so much that `until` matches."""
    raw = b""
    while part := process.stdout.read1():
        raw += part
        text = CONTROL.sub("", raw.decode(errors="replace"))
        if until is not None and re.search(until, text):
            return text
    assert until is None, text
    return text


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "bpg"])
def test_progress_is_live_in_a_terminal(method, tmp_path):
    arguments = ("--env", "CartPole-v1", "--policy", str(AGENT), "--horizon", "50", "--method", method)
    with terminal("evaluate", *arguments, "--episodes", "4000", cwd=tmp_path) as process:
        text = shown(process)
        assert process.wait() == 0
    assert re.search(LIVE.format("[1-3][0-9]00", "4000"), text), text
    assert "from 4000 episodes" in text[text.rindex("4000/4000") :], "the answer follows the display"


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_leaves_an_estimate(tmp_path):
    with terminal(*GRIDWORLD, "--episodes", "1000000", "--method", "mc", cwd=tmp_path) as process:
        shown(process, until=r" [1-9]\d*00/1000000 ")
        process.stdin.write(b"\x03")
        process.stdin.flush()
        text = shown(process)
        assert process.wait() == 130
    assert re.search(r"Interrupted after \d+00 episodes", text)
    assert "Traceback" not in text


@pytest.mark.slow
def test_quiet_where_there_is_no_terminal(tmp_path):
    done = bpsearch(*GRIDWORLD, "--episodes", "200", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "/200" not in done.stdout


COMPLETIONS = {
    "bpsearch eval": "evaluate",
    "bpsearch study ab": "abandon",
    "bpsearch evaluate --targ": "--target",
    "bpsearch evaluate --relative": "--relative-target",
    "bpsearch evaluate --method pd": "pdis-bpg",
}
COMPLETE = """
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_bpsearch_completion bpsearch
printf 'reply %s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash is installed")
def test_bash_completes(tmp_path):
    """With the script that the command prints, in bash itself."""
    script = f'eval "$({PROGRAM} --show-completion)"\ncomplete -p bpsearch\n'
    script += "".join(COMPLETE.format(words=words) for words in COMPLETIONS)
    environment = os.environ | {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "-F _bpsearch_completion bpsearch" in done.stdout, done.stderr
    assert re.findall("^reply (.*)$", done.stdout, flags=re.M) == list(COMPLETIONS.values())


def test_completion_can_be_installed(tmp_path):
    """For bash: into a file of its own in the home directory, which .bashrc then reads."""
    environment = os.environ | {"HOME": str(tmp_path)}
    command = f"'{PROGRAM}' --install-completion; true"  # bash would else replace itself by the program
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert "completion installed" in done.stdout, done.stderr
    [line] = [line for line in (tmp_path / ".bashrc").read_text().splitlines() if "bash_completions" in line]
    assert "_bpsearch_completion" in Path(line.split()[-1].strip("'")).read_text()


def test_exit_codes(in_process, tmp_path):
    done = in_process(*GRIDWORLD, "--episodes", "20", "--out", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    for mistake in (["--episodes", "0"], ["--episodes", "many"], ["--no-such-option"], ["--store", str(tmp_path)]):
        done = in_process(*GRIDWORLD, *mistake)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_a_directory_that_cannot_be_made_is_noticed_before_the_first_episode(in_process, tmp_path):
    (tmp_path / "file").write_text("")
    done = in_process(*GRIDWORLD, "--episodes", "1000000000", "--out", tmp_path / "file" / "report")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


BROKEN = """
import gymnasium

gymnasium.register("Broken-v0", entry_point="broken:Broken")


class Broken(gymnasium.Env):
    def __init__(self):
        raise ZeroDivisionError("a fault\\nof the environment")
"""


@pytest.mark.slow
@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_gives_one_line_and_its_traceback_only_with_debug(debug, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    arguments = ["evaluate", "--env", "broken:Broken-v0", "--policy", str(AGENT), "--episodes", "10"]
    done = subprocess.run(
        [str(PROGRAM), *(["--debug"] if debug else []), *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "ZeroDivisionError: a fault" in done.stderr
    assert ("Traceback" in done.stderr) == debug
    if not debug:
        assert done.stderr.count("\n") == 1
