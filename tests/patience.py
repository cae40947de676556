"""How long tests wait for what has to happen: so long that only a hang exceeds it, however busy the machine is."""

PATIENCE_S = 90.0
