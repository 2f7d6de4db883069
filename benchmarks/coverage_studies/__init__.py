"""How often anytime-valid intervals hold with every method: at all looks at once, and where a study stops."""
