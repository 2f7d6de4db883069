"""The docs page says what its run has found."""

import json
import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "paper.md").read_text()


def test_the_page_has_every_claim_of_its_run_with_its_verdict():
    experiments = json.loads((DOCS / "paper" / "claims.json").read_text())["experiments"]
    assert set(experiments) == {"gridworld", "control-variates", "rare-event"}
    for found in experiments.values():
        for claim in found:
            start = f"| {claim['text']} | {claim['measured']} |".replace("|return|", r"\|return\|")
            rows = [row for row in PAGE.splitlines() if row.startswith(start)]
            assert len(rows) == 1, claim["name"]
            assert f"**{claim['verdict']}**" in rows[0]
            assert f"| {claim['ours']:.3g} |" in rows[0]


def test_links_and_figures_exist():
    targets = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert targets
    for target in targets:
        assert (DOCS / target).exists(), target
