"""What holds for every test: none is judged by how fast the machine is just now. Speed is measured in `tests/bench`."""

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
