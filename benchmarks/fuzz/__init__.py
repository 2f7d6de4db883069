"""Fuzzers: whatever comes from outside, changed at random, with a count of what came of it."""
