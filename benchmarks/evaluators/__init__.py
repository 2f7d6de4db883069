"""How many episodes each method is worth: tasks x methods x budgets, against the exact or a very precise truth."""
