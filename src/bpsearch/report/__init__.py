"""What we say: words, numbers, JSON and pages about an estimate, and how every figure of the project looks."""
