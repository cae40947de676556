"""Grids of simulations: which cells to run, running them in parallel, and comparing their results."""
