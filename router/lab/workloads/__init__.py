"""Workloads as values: sessions of turns with their sizes, pauses and shared prefixes, all from one seed.

`model.py` defines a workload, `arrivals.py` keeps a million requests small, `presets.py` generates closed and open
loops with published statistics, `traces.py` reads and writes traces. Nothing here knows an engine or a clock.
"""
