"""Secrets that options name by their environment variable, so that they are in no command line."""

from __future__ import annotations

import os
import re

from router.errors import HIDDEN, ConfigError

VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def read_variable(option: str, name: str | None) -> str | None:
    """Return the value of the environment variable `name`, which `option` names; None for None. Raises ConfigError if
    it is not set; what cannot be a name may be the secret itself, and is not repeated.
    """
    if name is None:
        return None
    if VARIABLE.fullmatch(name) is None:
        raise ConfigError(f"{option}: found {HIDDEN}, wanted the name of an environment variable")
    if not (value := os.environ.get(name)):
        raise ConfigError(f"{option}: the environment variable {name} is not set: export it before the command")
    return value
