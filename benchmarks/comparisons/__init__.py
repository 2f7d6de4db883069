"""How good comparisons are: false verdicts, power, episodes saved."""
