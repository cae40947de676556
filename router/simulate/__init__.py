"""The simulator's commands: files in, tables, JSON and charts out. The simulation itself is `router/sim`."""
