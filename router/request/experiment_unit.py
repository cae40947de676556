"""The unit of randomisation of an experiment: the requests that stay on one arm.

    session   the client's name for its session or user, else the conversation
    program   as `session`, for the first session of its family, so that an agent and its sub-agents stay together
    user      the client's name for its user (as `program`, without falling back to the conversation)
    api_key   the name of the client's key
    time      the window of time of the request
    request   the request itself

A request without such a name is a unit by itself.
"""

from __future__ import annotations

from hashlib import blake2b

from router.config.sections.experiment import ExperimentConfig
from router.prompt.prompt import Prompt
from router.scheduling.conversations import Conversations


def derive_unit(
    experiment: ExperimentConfig,
    prompt: Prompt,
    conversations: Conversations,
    client: str | None,
    record_id: str,
    at_wall_s: float,
) -> bytes:
    """Return 16 bytes, equal for equal units in every process, provided that a conversation without a session name
    has the same name in the `conversations` of each process. The bytes do not reveal the names of users and keys.
    """
    match experiment.unit:
        case "session":
            name = _encode(prompt.session) or conversations.identify(prompt)
        case "program":
            name = _encode(prompt.program) or conversations.identify(prompt)
        case "user":
            name = _encode(prompt.program)
        case "api_key":
            name = _encode(client)
        case "time":
            return window_unit(experiment, at_wall_s)
        case "request":
            name = None
    return blake2b(name or record_id.encode(), digest_size=16, person=experiment.unit.encode()).digest()


def window_unit(experiment: ExperimentConfig, at_wall_s: float) -> bytes:
    """Return the unit of the window of time that contains `at_wall_s`."""
    name = b"%d" % (at_wall_s // experiment.window_s)
    return blake2b(name, digest_size=16, person=b"time").digest()


def _encode(name: str | None) -> bytes | None:
    return None if name is None else name.encode(errors="surrogatepass")
