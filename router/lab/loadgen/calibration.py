"""Calibration before a load: queries the endpoint for its model's name, and measures the tokens per word.

Two chats of known text, one short and one longer, request one token each. The difference of their prompt tokens
divided by the difference of their words gives the tokens per word of the model's tokenizer, whatever its chat
template adds.
"""

from __future__ import annotations

import httpx

from router.backends.failure import describe_failure
from router.config.pem_files import trust_of
from router.errors import WarmrouteError
from router.lab.loadgen.client import ClientFailure, LoadClient, bearer
from router.lab.loadgen.conversations import TextGenerator

SHORT_WORDS, LONG_WORDS = 16, 272
CALIBRATION_SOURCE = 0  # source of the text that is sent


class EndpointUnavailable(WarmrouteError):
    """The endpoint does not answer, or not as expected. The message is one line."""


async def find_first_model(url: str, api_key: str | None, ca_file: str | None = None) -> str:
    """Return the endpoint's first model. Raises EndpointUnavailable if the endpoint is unreachable, rejects the
    query or lists no model.
    """
    base = url.rstrip("/").removesuffix("/v1")
    try:
        verify = trust_of(base, ca_file)
        headers = bearer(api_key)
        async with httpx.AsyncClient(
            base_url=base, headers=headers, timeout=10.0, trust_env=False, verify=verify
        ) as http:
            answer = (await http.get("/v1/models")).raise_for_status().json()
        return str(answer["data"][0]["id"])
    except httpx.HTTPStatusError as refused:
        status, body = refused.response.status_code, refused.response.text[:200]
        raise EndpointUnavailable(f"{url}/v1/models: status {status}: {body}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EndpointUnavailable(f"{url}: {describe_failure(error)}; is it running there? (--url)") from None
    except (ValueError, LookupError, TypeError):
        raise EndpointUnavailable(f"{url}/v1/models lists no model: name one with --model") from None


async def measure_tokens_per_word(client: LoadClient, text_seed: int) -> float:
    """Return the tokens per word. Raises EndpointUnavailable when requests fail or the usage is implausible."""
    short, long = [await _prompt_tokens(client, text_seed, words) for words in (SHORT_WORDS, LONG_WORDS)]
    if long <= short:
        counts = f"{SHORT_WORDS} words as {short} prompt tokens and {LONG_WORDS} as {long}"
        raise EndpointUnavailable(f"the endpoint counts {counts}: its usage is implausible; send token ids with --ids")
    return (long - short) / (LONG_WORDS - SHORT_WORDS)


async def _prompt_tokens(client: LoadClient, text_seed: int, words: int) -> int:
    text = "".join(TextGenerator(text_seed).generate_words(CALIBRATION_SOURCE, words))
    answer = await client.chat([{"role": "user", "content": text}], 1)
    if isinstance(answer, ClientFailure):
        raise EndpointUnavailable(f"the first request failed: {answer.status or 'no answer'}: {answer.reason}")
    return answer.prompt_tokens
