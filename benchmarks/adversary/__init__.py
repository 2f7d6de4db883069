"""Tasks made to break the default method, and what it does on them: families with drawn parameters and exact truth."""
