"""What a load must know of its endpoint before it begins: that it answers, what its model is called, and how it counts.

Two chats of known text are asked, one short and one longer, for one token each: the difference of their prompt tokens
by the difference of their words is what a word of ours takes with that model's tokenizer, whatever its template adds.
"""

from __future__ import annotations

import httpx

from router.errors import WarmrouteError
from router.testbed.loadgen.client import ClientFailure, LoadClient, bearer
from router.testbed.loadgen.text import TextGenerator

SHORT_WORDS, LONG_WORDS = 16, 272
CALIBRATION_SOURCE = 0  # of the text that is asked


class EndpointUnavailable(WarmrouteError):
    """Nobody there, or somebody who does not speak as expected; one line."""


async def find_first_model(url: str, api_key: str | None) -> str:
    """The first one that the endpoint names. Raises NoEndpoint."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        async with httpx.AsyncClient(base_url=base, headers=bearer(api_key), timeout=10.0, trust_env=False) as http:
            answer = (await http.get("/v1/models")).raise_for_status().json()
        return str(answer["data"][0]["id"])
    except httpx.HTTPStatusError as refused:
        status, said = refused.response.status_code, refused.response.text[:200]
        raise EndpointUnavailable(f"{url}/v1/models: status {status}: {said}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as trouble:
        raise EndpointUnavailable(f"{url}: {type(trouble).__name__}: {trouble}; does it run there? (--url)") from None
    except (ValueError, LookupError, TypeError):
        raise EndpointUnavailable(f"{url}/v1/models names no model: say which one to ask for (--model)") from None


async def measure_tokens_per_word(client: LoadClient, text_seed: int) -> float:
    """Raises NoEndpoint."""
    short, long = [await _prompt_tokens(client, text_seed, words) for words in (SHORT_WORDS, LONG_WORDS)]
    if long <= short:
        counted = f"{SHORT_WORDS} words as {short} prompt tokens and {LONG_WORDS} as {long}"
        raise EndpointUnavailable(f"the endpoint counts {counted}: its usage cannot be relied on (--prompts ids)")
    return (long - short) / (LONG_WORDS - SHORT_WORDS)


async def _prompt_tokens(client: LoadClient, text_seed: int, words: int) -> int:
    text = "".join(TextGenerator(text_seed).first(CALIBRATION_SOURCE, words))
    answer = await client.chat([{"role": "user", "content": text}], 1)
    if isinstance(answer, ClientFailure):
        raise EndpointUnavailable(f"the first request failed: {answer.status or 'no answer'}: {answer.reason}")
    return answer.prompt_tokens
