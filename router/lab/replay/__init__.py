"""Decisions of the decision log, made again: by the policies that made them, and by others for comparison."""
