"""A reader's test: from an empty directory to two compared checkpoints with a page, by the README and first tutorial.

    python -m benchmarks.readers_test --package dist/bpsearch-0.2.0-py3-none-any.whl

Makes a virtual environment in an empty directory, installs the package as README says, and runs the first tutorial's
blocks of Python and its commands as they are printed. Prints what was run and how long it took.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorials" / "first-evaluation.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    """The blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def timed(title: str, command: list[str], folder: Path) -> str:
    """Run it, print a row, and give what it printed."""
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    print(f"| {title} | {time.perf_counter() - began:.0f} s |", flush=True)
    if done.returncode:
        sys.exit(f"{title} failed:\n{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", default="bpsearch", help="what pip installs: a name, or a wheel")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    assert "pip install 'bpsearch[sb3]'" in README
    package = Path(options.package).resolve() if Path(options.package).exists() else options.package
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("| step | time |\n|---|---|")
        timed("python -m venv .venv", [options.python, "-m", "venv", ".venv"], folder)
        pip = [".venv/bin/pip", "install", "--quiet", f"{package}[sb3]"]
        timed("pip install 'bpsearch[sb3]'", pip, folder)
        (folder / "tutorial.py").write_text("\n".join(blocks(TUTORIAL, "python")))
        printed = timed("the tutorial's Python, as a script", [".venv/bin/python", "tutorial.py"], folder)
        for line in "\n".join(blocks(TUTORIAL, "bash")).strip().splitlines():
            timed(f"`{line}`", [f".venv/bin/{shlex.split(line)[0]}", *shlex.split(line)[1:]], folder)
        for page in ("report.html", "comparison.html", "report/report.html"):
            assert "<svg" in (folder / page).read_text(), page
        assert "late is better than early" in printed, printed
        print(f"\nPages: report.html, comparison.html. What the script printed:\n\n{printed}")


if __name__ == "__main__":
    main()
