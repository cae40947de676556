"""`python -m tests.stack.template_comparison` compares the router's renderer with the engine's over many templates.

Both get the same model folder (the stack's tokenizer, with all special variables set and the special tokens of many
families added), the same template, the same requests and the same clock. What the router computes as a prompt's token
ids, and may hand to an engine, must be what the engine computes.

    template_comparison [--chats N] [--seed S] [NAME]    N random chats per template (50), templates whose name has NAME
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer

from router.config.schema import TokenizerSource
from router.errors import BadRequest, ConfigError
from router.lab.local_stack.commands import ENGINE_ENVIRONMENT
from router.lab.local_stack.install import ReportLine, print_line, stack_models, stack_venv
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.model_folder import load
from tests.stack.bodies import Body
from tests.stack.sdists import Template, chat_templates
from tests.stack.template_bodies import FIXED, MARKS, random_chats

REFERENCE = Path(__file__).parent / "reference_renderer.py"
RANDOM_CHATS = 50
WALL_S = 1_700_000_000.0
LEAST_BYTES = 64  # of a segment: short, so that most prompts have several
SPECIAL = {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>", "pad_token": "<|endoftext|>"}

Rendered = list[int] | dict[str, Any]  # token ids, or {"refused": why}


class Pair(NamedTuple):
    """One request under one template."""

    template: str
    body: Body
    ours: Rendered
    theirs: Rendered

    def __str__(self) -> str:
        return f"{self.template}: {self.body.name}\n  ours   {str(self.ours)[:600]}\n  theirs {str(self.theirs)[:600]}"


class Comparison(NamedTuple):
    """All pairs, by what became of them; only those are kept in which the two sides differ."""

    equal: int  # both render, the same ids
    refused: int  # by both
    unequal: list[Pair]  # both render, other ids
    only_ours: list[Pair]  # the engine refuses
    only_theirs: list[Pair]  # the router refuses

    def __str__(self) -> str:
        return (
            f"{self.equal} equal, {len(self.unequal)} unequal, {len(self.only_ours)} rendered only by the router, "
            f"{len(self.only_theirs)} only by the engine, {self.refused} by neither"
        )


def compare(
    templates: Sequence[Template], chats: int, seed: int = 0, report: ReportLine = lambda line: None
) -> Comparison:
    """Render the fixed requests and `chats` random ones with every template on both sides."""
    found = Comparison(0, 0, [], [], [])
    jobs = [(template, [*FIXED, *random_chats(f"{seed} {template.name}", chats)]) for template in templates]
    with TemporaryDirectory() as folder:
        model = make_model_folder(Path(folder))
        with reference(model, [(template.text, bodies) for template, bodies in jobs]) as lines:
            for number, (template, bodies) in enumerate(jobs, 1):
                ours = render_all(model, template, bodies)
                for pair in zip(bodies, ours, json.loads(next(lines)), strict=True):
                    found = sort_pair(found, Pair(template.name, *pair))
                report(f"  {number} of {len(jobs)}: {template.name}: {found}")
    return found


def sort_pair(found: Comparison, pair: Pair) -> Comparison:
    """Count the pair, or keep it if the two sides differ."""
    if isinstance(pair.ours, list) and isinstance(pair.theirs, list):
        if pair.ours == pair.theirs:
            return found._replace(equal=found.equal + 1)
        found.unequal.append(pair)
    elif isinstance(pair.ours, list):
        found.only_ours.append(pair)
    elif isinstance(pair.theirs, list):
        found.only_theirs.append(pair)
    else:
        return found._replace(refused=found.refused + 1)
    return found


def render_all(model: Path, template: Template, bodies: Sequence[Body]) -> list[Rendered]:
    """Return what the router makes of each request."""
    source = TokenizerSource(path=str(model), chat_template=str(template.file))
    try:
        tokenizer = load(source, "tokenizers.tiny", lambda: WALL_S, LEAST_BYTES)
    except ConfigError as error:
        return [{"refused": str(error)}] * len(bodies)
    return [render(tokenizer, body) for body in bodies]


def render(tokenizer: LocalTokenizer, body: Body) -> Rendered:
    """Render and tokenise as `PromptTokenizer` does: segment by segment."""
    try:
        source = read_prompt(body.path, None, json.dumps(body.body).encode(), ReadOptions()).source
        if not isinstance(source, Chat):
            return {"refused": repr(source)}
        source = tokenizer.adapt(source)
        prompt = tokenizer.segment(source)
        ids = [id for segment in prompt.segments for id in tokenizer.encode_segment(segment, source)]
    except (BadRequest, UnrenderableChat) as refusal:
        return {"refused": str(refusal)}
    return [*prompt.head, *ids, *prompt.tail]


@contextmanager
def reference(
    model: Path, jobs: Sequence[tuple[str | None, Sequence[Body]]], options: Sequence[str] = ()
) -> Iterator[Iterator[str]]:
    """Yield the lines that the engine's renderer writes, one per template, in a process of its own. None: as the model
    has it. `options`: further ones of `vllm serve`.
    """
    file, log = model.parent / "jobs.jsonl", model.parent / "reference.log"
    with file.open("w") as out:
        for template, bodies in jobs:
            requests = [[body.path, body.body] for body in bodies]
            out.write(json.dumps({"template": template, "requests": requests}) + "\n")
    command = [str(stack_venv() / "bin" / "python"), str(REFERENCE), str(model), str(file), "--clock", str(WALL_S)]
    command += ["--tool-call-parser", "hermes", *options]
    environment = {**ENGINE_ENVIRONMENT, "VLLM_LOGGING_LEVEL": "CRITICAL", "PATH": "/usr/bin:/bin"}
    environment["VLLM_SYSTEM_START_DATE"] = datetime.fromtimestamp(WALL_S, UTC).strftime("%Y-%m-%d")
    with (
        log.open("w") as err,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            yield _lines(process.stdout, log)
        finally:
            process.kill()


def _lines(out: Iterator[str], log: Path) -> Iterator[str]:
    yield from out
    raise AssertionError(f"the engine's renderer ended early:\n{log.read_text()[-3000:]}")


def make_model_folder(parent: Path) -> Path:
    """Make a model folder without weights: the stack's tokenizer with more special tokens."""
    tiny = stack_models(stack_venv()).tiny
    folder = parent / "tiny"
    folder.mkdir()
    for name in ("config.json", "generation_config.json"):
        shutil.copy(tiny / name, folder)
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS if mark not in known])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((tiny / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | SPECIAL))
    return folder


def _print_reasons(title: str, pairs: Sequence[Pair], refusal: Callable[[Pair], Rendered]) -> None:
    print_line(title)
    for reason, count in Counter(str(refusal(pair))[:160] for pair in pairs).most_common(40):
        print_line(f"  {count:6} {reason}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--chats", type=int, default=RANDOM_CHATS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    templates = [one for one in chat_templates(stack_venv() / "bin" / "pip") if given.name in one.name]
    found = compare(templates, given.chats, given.seed, print_line)
    for pair in found.unequal[:20]:
        print_line(str(pair))
    _print_reasons("Why the engine refuses what the router renders:", found.only_ours, lambda pair: pair.theirs)
    _print_reasons("Why the router refuses what the engine renders:", found.only_theirs, lambda pair: pair.ours)
    print_line(f"{len(templates)} templates, {len(FIXED)} fixed requests and {given.chats} random chats each: {found}")


if __name__ == "__main__":
    main()
