"""Token ids of a prompt from an engine's `/tokenize`; for a chat with images, the ids before the first image.

Clients' images are not sent: the engine would fetch them a second time, and their placeholders match no block.
Instead two chats are tokenised: one with a small picture of the router's own in the place of each image, and one
with text in the place of each image. The first is rendered like the client's chat, whatever the engine and its
template do about images (placeholders in front of a message's text, another system prompt), and only its images
take other tokens. The second has no image. So the common beginning of both is the beginning of the client's prompt,
and ends before its first image.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from router.prompt.api.messages import find_image, replace_images
from router.prompt.common_prefix import common_length
from router.prompt.prompt import Chat, Prompt, UnknownIds
from router.prompt.tokenization.proof import ProofEngine, RemoteFailure

_PNG: Final = (  # 224 x 224 pixels, which every image processor accepts, of one bit each
    "iVBORw0KGgoAAAANSUhEUgAAAOAAAADgAQAAAAAyVldMAAAAHUlEQVR42u3BMQEAAADCoPVPbQZ/oAAAAAAAAHgMGWAAAQrTbh4AAAAASUVORK5CYII="
)
PICTURE: Final = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PNG}"}}
MARK: Final = {"type": "text", "text": "\ue0ffwarmroute-image\ue0ff"}  # private use characters, in no placeholder


class RemoteIds(NamedTuple):
    """The ids of a prompt; `complete` False: an image follows them."""

    ids: array[int]
    complete: bool


class RemoteTokenizer(ProofEngine, Protocol):
    """Token ids from an engine (`router.backends.remote_tokenizer`); a string is the reason why there are none."""

    async def tokenize(
        self, fields: dict[str, Any], model: str, instances: Sequence[str], timeout_s: float, client: str = ""
    ) -> array[int] | RemoteFailure:
        """Return the ids of `fields` (a `Prompt.remote_fields` of `client`) from one of `instances`, used in
        rotation.
        """

    async def detokenize(self, ids: Sequence[int], model: str, instances: Sequence[str]) -> str | None:
        """Return the text of `ids` from one of `instances`; None if the instance does not answer."""


async def find_remote_ids(
    remote: RemoteTokenizer,
    prompt: Prompt,
    model: str,
    instances: Sequence[str],
    left_s: Callable[[], float],
    client: str = "",
) -> RemoteIds | UnknownIds:
    """Return the ids of an already read prompt of `client`, from `instances` of base model `model`, within
    `left_s`.
    """
    fields, name = prompt.remote_fields, prompt.model or model
    if not (isinstance(prompt.source, Chat) and prompt.source.has_media):
        ids = await remote.tokenize(fields, name, instances, left_s(), client)
        return UnknownIds(ids) if isinstance(ids, str) else RemoteIds(ids, True)
    pictured, marked = _replace(fields)
    if pictured is None or marked is None:
        return UnknownIds("media")
    shown = await remote.tokenize(pictured, name, instances, left_s(), client)
    if isinstance(shown, str):
        return UnknownIds(shown)
    without = await remote.tokenize(marked, name, instances, left_s(), client)
    if isinstance(without, str):
        return UnknownIds(without)
    common = common_length(shown, without)
    return UnknownIds("media") if common == len(shown) else RemoteIds(shown[:common], False)


def _replace(fields: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the fields with pictures, and with text up to the first message with an image; None: audio or
    video.
    """
    messages = fields["messages"]
    pictured, marked = replace_images(messages, PICTURE), replace_images(messages[: find_image(messages) + 1], MARK)
    if pictured is None or marked is None:
        return None, None
    ended = {"messages": marked, "add_generation_prompt": False, "continue_final_message": False}
    return fields | {"messages": pictured}, fields | ended
