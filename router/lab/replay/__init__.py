"""Replay of a decision log: its decisions made again by the policies that made them, and by others to compare."""
