"""The pages of the site: every block of Python and every command runs as it is printed, in the order of the page."""

import contextlib
import io
import re
import shlex
import shutil
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
AGENT = ROOT / "tests" / "agents" / "ppo-cartpole-v1.zip"
# Pages whose Python stands in a file of its own, or needs what is not here; who runs it instead.
ELSEWHERE = {
    "comparing.md": "tests/test_docs.py",
    "extending.md": "tests/test_extending.py, which compares it with examples/extending",
    "rare-failures.md": "examples/lane_keeping.py, examples/wind_gusts.py and tests/test_noise.py",
    "workers.md": "tests/test_workers.py and tests/test_ray.py: its first block needs a Ray cluster",
}
# What a page of the older kind takes for granted.
GIVEN = {
    "intervals.md": "import bpsearch as bps\n"
    'policy, env = bps.shipped_policy("gridworld-early"), bps.envs.gridworld()\n',
}
# Benchmarks that take long, on pages that show their results; and what needs packages or files that are not here.
NOT_RUN = ("python ", "ray ", "make ", "pip ", "bpsearch study tell", "bpsearch evaluate --env walk:0.5")


def blocks(page, language):
    return re.findall(rf"^```(?:\{{code-cell\}} )?{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def commands(page):
    lines = [line.split(" #")[0].strip() for block in blocks(page, "bash") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(NOT_RUN)]


PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts and "_generated" not in page.parts)
WITH_CODE = [page for page in PAGES if commands(page) or (blocks(page, "python") and page.name not in ELSEWHERE)]


def name_of(page):
    return page.relative_to(DOCS).as_posix()


@pytest.mark.slow  # run by make docs, too
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, in_process):
    """First its Python, then its commands, which find the files that the Python has written."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(AGENT, "ppo.zip")
    if page.name not in ELSEWHERE:
        run_python(page)
    for command in commands(page):
        program, *arguments = shlex.split(command)
        assert program == "bpsearch", command
        done = in_process(*arguments)
        assert done.returncode == 0, (command, done.stderr)


def run_python(page):
    names = {"__name__": "page"}
    given = GIVEN.get(page.name, "") if page.parent == DOCS else ""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()) as printed:
        warnings.simplefilter("error")
        for block in [given, *blocks(page, "python")]:
            exec(compile(block, str(page), "exec"), names)
    if any("print(" in block for block in blocks(page, "python")):
        assert printed.getvalue().strip()


def test_every_page_is_in_the_table_of_contents():
    index = [page for page in PAGES if "{toctree}" in page.read_text()]
    listed = {DOCS / "index.md"}
    for page in index:
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), flags=re.M | re.S):
            entries = [line for line in block.split() if not line.startswith(":") and not line.isdigit()]
            listed |= {(page.parent / f"{entry}.md").resolve() for entry in entries}
    assert listed == set(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
