"""What came of the runs of a fuzzer, and the command run in this process."""

import contextlib
import io
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bpsearch.errors import BPSearchError

SHOWN = 200  # wrong runs that are printed


@dataclass
class Tally:
    """Counts of outcomes, and what should not have happened."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def count(self, outcome: str) -> None:
        """One more of an outcome."""
        self.counts[outcome] += 1

    def complain(self, what: str, how: str) -> None:
        """Something happened that should not have, and the change that led to it."""
        self.counts["wrong"] += 1
        self.wrong.append(f"{how}: {what}")

    def attempt(self, what: Callable[[], Any], how: str) -> Any:
        """Call something that may refuse by an error of bpsearch; what it gave, or None."""
        try:
            result = what()
        except BPSearchError as error:
            self.count("refused")
            if not str(error).isprintable():
                self.complain(f"a message of several lines, or with escapes: {error!r:.300}", how)
            return None
        except Exception as error:
            self.complain(f"{type(error).__name__}: {error!s:.300}", how)
            return None
        self.count("accepted")
        return result

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return "\n".join([counts or "nothing", *self.wrong[:SHOWN]])


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str


def command(*arguments: object) -> Done:
    """`bpsearch` in this process: to start one takes seconds."""
    import bpsearch.cli

    for name, module in list(sys.modules.items()):
        if name.startswith("bpsearch.cli") and hasattr(module, "prepare_jax"):
            vars(module)["prepare_jax"] = lambda **_: None
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["bpsearch", *map(str, arguments)]
    code: Any = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            bpsearch.cli.main()
    except SystemExit as stopped:
        code = stopped.code
    finally:
        sys.argv = before
    return Done(0 if code is None else int(code), out.getvalue(), err.getvalue())


def is_one_line(done: Done) -> bool:
    """Whether a refusal is exit code 2 with one printable line that says it is bpsearch's."""
    line = done.err.removesuffix("\n")
    return done.code == 2 and line.startswith("bpsearch: ") and line.isprintable()
