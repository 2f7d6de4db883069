"""The calls: they resolve what people name into objects, pick the rooms' occupants, and run a study."""
