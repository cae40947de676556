"""The public conversation trace, where it is: Moonshot's, 12,031 requests of an hour, published with the FAST'25 paper.

It is data of others and so no part of this repository. It is looked for where WARMROUTE_CONVERSATION_TRACE says, else
beside the checkout, in `../shared/traces`. Where it is missing, what needs it is left out and says so.
"""

from __future__ import annotations

import os
from pathlib import Path

from router.errors import WarmrouteError

VARIABLE = "WARMROUTE_CONVERSATION_TRACE"
BESIDE = Path(__file__).parents[3] / "shared" / "traces" / "conversation_trace.jsonl.gz"
PUBLISHED = "https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release/traces"
ROUNDED_S = 3.0
"""Its timestamps are multiples of about three seconds: ten requests at one instant are an artefact of that."""


class NoTrace(WarmrouteError):
    """The trace is not here; the message says where it is published and where it is looked for."""


def conversation() -> Path:
    """Raises NoTrace."""
    file = Path(os.environ.get(VARIABLE) or BESIDE)
    if not file.is_file():
        raise NoTrace(f"no conversation trace: published at {PUBLISHED}; {VARIABLE} says where the file is")
    return file
