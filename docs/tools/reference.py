"""Reference pages made from the code: configuration, metrics, commands, HTTP, plug-ins; and ends of pages."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import typer

from docs.tools.config_keys import iter_keys
from docs.tools.http_differences import differences
from docs.tools.markdown import table
from docs.tools.pages import DOCS
from docs.tools.whole_router import describe_admin_api, list_families
from router.cli.main import app
from router.operate.doctor.suite import CHECKS as DOCTOR_CHECKS
from router.request.public_paths import PATHS, Placement
from scorers.admission.contract import AdmissionRule
from scorers.contract import Needs, Plugin, Scorer
from scorers.parameters import parameters
from scorers.registry import BUILTINS, load_registry
from tests.headtohead.comparison import MIN_PAIRS
from tests.headtohead.loads import AT_REAL, LOADS, SIMULATED
from tests.headtohead.match import decode_matches
from tests.headtohead.page import render_loads, render_overview
from tests.picker_conformance.report import PROTOCOL_VERSION, SUITE_VERSION
from tests.picker_conformance.suite import CASES

NOTICE = "<!-- Made by `make reference` from the code. Edit the code, not this page. -->\n"


def render_pages() -> dict[str, str]:
    """Return the text of each page under `docs/reference/`, by its name."""
    made: dict[str, Callable[[], Iterable[str]]] = {
        "configuration": configuration,
        "metrics": metrics,
        "cli": cli,
        "http": http,
        "plugins": plugins,
    }
    return {name: "\n".join([NOTICE, *lines()]).rstrip() + "\n" for name, lines in made.items()}


def render_ends() -> dict[str, str]:
    """Return the generated end of each page that has one, by its path without the suffix."""
    made = {"operate/doctor": doctor, "operate/picker-conformance": picker_conformance}
    made["features/which-models"] = which_models
    made["measurements/routers"] = which_router
    return {name: "\n".join(["", *lines()]).rstrip() + "\n" for name, lines in made.items()}


# configuration


def configuration() -> Iterator[str]:
    yield "# Configuration reference\n"
    yield "Every key of the main configuration file. `[]` stands for each entry of a list, `<name>` for a name of your"
    yield "choice. How the files work, what is checked and what takes effect without a restart is in"
    yield "[Configuration](../operate/configuration.md).\n"
    sections: dict[str, list[tuple[str, str, str, str]]] = {}
    for key in iter_keys():
        sections.setdefault(re.split(r"[.\[]", key.path)[0], []).append(key)
    alone = [group[0] for group in sections.values() if len(group) == 1]
    columns = ("key", "kind", "default", "meaning")
    for name, group in sections.items():
        if len(group) > 1:
            yield f"## `{name}`\n"
            yield from table(columns, [(f"`{path}`", *rest) for path, *rest in group])
    yield "## Single keys\n"
    yield from table(columns, [(f"`{path}`", *rest) for path, *rest in alone])


# metrics


def metrics() -> Iterator[str]:
    yield "# Metrics reference\n"
    yield "Everything that `GET /metrics` can show, in the order in which it appears there. Metrics of the router's"
    yield "process (`process_*`) come from the Prometheus client library. Alerts, and what to do about each, are in"
    yield "[Alerts](../operate/alerts.md).\n"
    rows = []
    for family in list_families():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        rows.append((f"`{name}`", family.type, labels or "-", family.documentation.rstrip(".")))
    yield from table(("metric", "type", "labels", "meaning"), rows)


# commands


def cli() -> Iterator[str]:
    yield "# Command reference\n"
    yield "`python -m router` is the same command. Exit codes: 0 done; 1 failed while running; 2 the command line or a"
    yield "file is wrong; 130 interrupted with Ctrl-C, what was finished by then has been reported.\n"
    yield from _command("warmroute", typer.main.get_command(app))


def _command(path: str, command: Any) -> Iterator[str]:
    inner: dict[str, Any] = getattr(command, "commands", {})
    if path != "warmroute":
        yield f"{'###' if path.count(' ') > 1 else '##'} `{path}`\n"
    if command.help and path != "warmroute":
        yield f"{_prose(command.help)}\n"
    given = [parameter for parameter in command.params if parameter.name != "help" and not parameter.hidden]
    if given and path != "warmroute":
        yield from table(("option", "default", "meaning"), [_option(parameter) for parameter in given])
    for name, below in inner.items():
        yield from _command(f"{path} {name}", below)


def _option(parameter: Any) -> tuple[str, str, str]:
    names = [parameter.display_name_raw] if parameter.param_type_name == "argument" else parameter.opts
    spelled = ", ".join(f"`{name}`" for name in [*names, *parameter.secondary_opts])
    if parameter.param_type_name == "option" and parameter.metavar:
        spelled += f" `{parameter.metavar}`"
    default = parameter.default
    shown = "**required**" if parameter.required else "-"
    if default is not None and not callable(default) and not isinstance(default, bool) and default != []:
        shown = f"`{default}`"
    elif isinstance(default, bool):
        shown = "on" if default else "off"
    meaning = _prose(parameter.help or "")
    if parameter.envvar:
        meaning += f" (environment variable `{parameter.envvar}`)"
    return spelled, shown, re.sub(r" +\[default: [^]]*\]", "", meaning)


def _prose(text: str) -> str:
    return " ".join(text.split())


# HTTP


PLACEMENTS: dict[Placement, str] = {
    "cache": "the policy, by cache and load",
    "load": "load",
    "response": "goes to the target that made the response, whose answer passes",
    "router": "answered by the router",
    "operation": "answered by the router; no API key is needed",
}
REQUEST_HEADERS = (
    ("X-Session-ID", "the session that the request belongs to, for policies, experiments and admission"),
    ("X-Parent-Session-ID", "the session that started it: [all headers that name a session](../features/agents.md)"),
    ("x-warmroute-continue", "`off`: another engine must not carry the answer on when its own fails in the middle"),
    ("x-slo-ttft-ms", "latency objective for the first token, read by `slo_headroom` and `dualmap`"),
    ("x-slo-tpot-ms", "latency objective per further token, read by `slo_headroom`"),
    ("X-Warmroute-Policy", "policy for this request alone; needs a token with the right `override`"),
    ("X-Warmroute-Token", "that token; neither of the two headers reaches an engine"),
)
RESPONSE_HEADERS = (
    ("x-warmroute-record", "id of the decision record: `GET /admin/records/{id}`"),
    ("x-warmroute-target", "the target that answered"),
    ("x-warmroute-waited-ms", "how long the request waited for admission; absent if it did not wait"),
    ("x-warmroute-model", "the model that answered, if it is not the first one of its alias"),
)


BEHAVIOUR = (
    "A body that is not JSON in UTF-8 (a byte order mark counts), or is nested too deeply, is 400; one with a",
    "`Content-Encoding` is 415, as vLLM decodes none. The `model` of a form (multipart/form-data, as which audio is",
    "uploaded) is read as that of an object; a malformed form is 400. A prompt without `model` is for the only base",
    "model of the fleet, and 400 where there are several. Errors of the router have OpenAI's form; those on",
    "`/v1/messages`, and to requests with `anthropic-version`, have Anthropic's. With `edge.cors_origins` pages of",
    "these origins may use every path of the API (CORS): the router answers preflights and sets",
    "`access-control-allow-origin`.",
    "",
)


def http() -> Iterator[str]:
    yield "# HTTP reference\n"
    yield "## Public listener\n"
    yield "`listen.host` and `listen.port`, by default `0.0.0.0:8000`. A path that is not in this table is 404, because"
    yield "an engine serves its own administration beside the OpenAI paths. Another method is 405 with `Allow`, a"
    yield "WebSocket handshake on a path that takes POST is 426.\n"
    described = ((entry, "; ".join(filter(None, (PLACEMENTS[entry.placed], entry.meaning)))) for entry in PATHS)
    rows = [(f"`{entry.path}`", ", ".join(entry.methods), placed) for entry, placed in described]
    rows += [("`edge.extra_endpoints`", "as configured", "load")]
    yield from table(("path", "methods", "placed by"), rows)
    yield from BEHAVIOUR
    yield "### Headers of requests\n"
    yield from table(("header", "meaning"), [(f"`{name}`", meaning) for name, meaning in REQUEST_HEADERS])
    yield "### Headers of answers\n"
    yield from table(("header", "meaning"), [(f"`{name}`", meaning) for name, meaning in RESPONSE_HEADERS])
    yield from differences()
    yield from _admin()


USUAL = frozenset(("200", "401", "403", "404", "422"))
UNKNOWN_PARAMETER = {"400": "an unknown query parameter"}


def _admin() -> Iterator[str]:
    yield "## Admin listener\n"
    yield "`admin.host` and `admin.port`, by default `127.0.0.1:8001`; who may call what is in"
    yield "[Security](../operate/security.md). The listener describes itself at `/admin/openapi.json`, from which this"
    yield "section is made. Every endpoint answers 200 with its result, 400 for an unknown query parameter, 401 without"
    yield "a valid token, 403 without the right, 404 for what does not exist, and 422 for an invalid parameter; other"
    yield "answers are listed.\n"
    described = describe_admin_api()
    for path, methods in described["paths"].items():
        for method, endpoint in methods.items():
            yield f"### `{method.upper()} {path}`\n"
            yield f"{_description(endpoint)}\n"
            if "requestBody" in endpoint:
                yield f"Body: {_body(endpoint['requestBody'], described['components']['schemas'])}.\n"
            if query := [_parameter(one) for one in endpoint.get("parameters", ()) if one["in"] == "query"]:
                yield f"Parameters: {', '.join(query)}.\n"
            answers = {status: answer["description"] for status, answer in endpoint["responses"].items()}
            own = sorted(answers.items() - UNKNOWN_PARAMETER.items())
            if ends := [f"{status} {meaning}" for status, meaning in own if status not in USUAL]:
                yield f"Answers: {'; '.join(ends)}.\n"


def _description(endpoint: dict[str, Any]) -> str:
    return "\n\n".join(_prose(part) for part in endpoint.get("description", endpoint["summary"]).split("\n\n"))


def _body(body: dict[str, Any], schemas: dict[str, Any]) -> str:
    kinds = " or ".join(f"`{kind}`" for kind in body["content"])
    (schema, *_) = (content["schema"] for content in body["content"].values())
    named = schemas.get(schema.get("$ref", "").rpartition("/")[2], {})
    fields = [
        f"`{name}` ({field['type']}{', required' if name in named.get('required', ()) else ''})"
        for name, field in named.get("properties", {}).items()
    ]
    described = [text for text in (body.get("description"), ", ".join(fields)) if text]
    return "; ".join([kinds, *described])


def _parameter(parameter: dict[str, Any]) -> str:
    schema = parameter["schema"]
    kinds = [schema, *schema.get("anyOf", ())]
    kind = " or ".join(one["type"] for one in kinds if one.get("type") not in (None, "null"))
    bounds = [f"{word} {schema[key]}" for word, key in (("from", "minimum"), ("to", "maximum")) if key in schema]
    facts = [" ".join([kind, *bounds])]
    if parameter.get("required"):
        facts.append("required")
    if schema.get("default") is not None:
        facts.append(f"default `{json.dumps(schema['default'])}`")
    facts += [parameter["description"]] if "description" in parameter else []
    return f"`{parameter['name']}` ({', '.join(facts)})"


# plug-ins


def plugins() -> Iterator[str]:
    yield "# Scorers, filters, pickers and admission rules\n"
    yield "What policy files are made of, and what `admission.rule` names. `needs` is what the router has to find out"
    yield "for the plug-in; a scorer's unit says with which others it can be added up. How they fit together is in"
    yield "[Write your own scorer](../policies/write-a-scorer.md).\n"
    registry = load_registry()
    for kind, names in BUILTINS.items():
        named = {name: registry.find(kind, name) for name in names}
        unit = ("unit",) if kind is Scorer else ()
        if kind is AdmissionRule:
            yield "## Admission rules\n"
            yield from table(("name", "parameters", "meaning"), [_rule(n, p) for n, p in named.items()])
            continue
        yield f"## {kind.__name__}s\n"
        yield from table(("name", *unit, "needs", "parameters", "meaning"), [_plugin(n, p) for n, p in named.items()])


def _rule(name: str, rule: type[Plugin]) -> list[str]:
    module = sys.modules[rule.__module__]
    return [f"`{name}`", _parameters(rule), str(module.__doc__).partition("\n\n")[0].replace("\n", " ")]


def _parameters(plugin: type[Plugin]) -> str:
    return ", ".join(f"`{p.name}: {_yaml(p.default)}`" for p in parameters(plugin).values()) or "-"


def _plugin(name: str, plugin: type[Plugin]) -> list[str]:
    needs = ", ".join(str(one.name).lower() for one in Needs if one in plugin.needs)
    unit = [plugin.unit.value] if issubclass(plugin, Scorer) else []
    return [f"`{name}`", *unit, needs or "-", _parameters(plugin), str(plugin.__doc__).partition("\n\n")[0]]


def _yaml(default: object) -> object:
    return "null" if default is None else str(default).lower() if isinstance(default, bool) else default


# cases of the conformance suite


SUBJECTS = {
    1: "The service",
    2: "The destination endpoint",
    3: "The endpoint subset",
    4: "Request bodies (FULL_DUPLEX_STREAMED)",
    5: "Refusals",
    6: "Responses (FULL_DUPLEX_STREAMED)",
    7: "Other body modes",
    8: "Health checking",
}


def picker_conformance() -> Iterator[str]:
    counted = Counter(case.level for case in CASES)
    yield "## Cases\n"
    levels = ", ".join(f"{number} {level}" for level, number in counted.items())
    yield f"Suite {SUITE_VERSION}, endpoint picker protocol {PROTOCOL_VERSION}: {levels}. A report has for each case"
    yield "what was sent, what was expected, and the clause's source.\n"
    for hundreds, title in SUBJECTS.items():
        yield f"### {hundreds}xx: {title}\n"
        cases = [case for case in CASES if case.id.startswith(f"EPP-{hundreds}")]
        yield from table(("case", "level", "clause"), [(case.id, case.level, case.clause) for case in cases])


# models


def which_models() -> Iterator[str]:
    measured = json.loads((DOCS / "measurements" / "renderers.json").read_text())
    yield "## What the tests find\n"
    yield f"`make test-stack` renders the same chats here and by vLLM {measured['vllm']}, and sends six agents of four"
    yield "turns with tools through a router to two such engines. No chat had other ids; each request re-used as many"
    yield "tokens as predicted.\n"
    columns = (
        "mode",
        "chats with equal ids",
        "refused by both",
        "later turns at the engine that had the earlier ones",
        "tokens re-used",
    )
    rows = measured["modes"].items()
    yield from table(
        columns,
        [
            (
                f"`{mode}`",
                f"{row['equal']:,}",
                f"{row['refused']:,}",
                f"{row['at_home']} of 18",
                f"{row['reused_tokens']:,}",
            )
            for mode, row in rows
        ],
    )


# routers


def which_router() -> Iterator[str]:
    matches = decode_matches((DOCS / "measurements" / "routers.json").read_bytes())
    yield "## All loads and routers\n"
    yield "Medians over the seeds. In brackets: the difference from Warmroute's over the same seeds, `=` if its 95 %"
    yield f"interval (bootstrap) contains none, nothing with fewer than {MIN_PAIRS} seeds; `-`: not played.\n"
    yield from render_overview(SIMULATED, matches)
    yield from table(("load", "what it is"), [(load.name, load.about) for load in SIMULATED])
    yield "## At real engines\n"
    yield from render_overview(AT_REAL, matches)
    yield from table(("load", "what it is"), [(load.name, load.about) for load in AT_REAL])
    yield "## In real time\n"
    yield "Emulated engines, each a process, on the two cores of router and clients; CPU and memory: the router's.\n"
    yield from render_loads(LOADS, matches)


# checks of the doctor


def doctor() -> Iterator[str]:
    yield "## Checks\n"
    yield "In the order in which they matter. Checks of prompts are skipped with `--passive`; checks of routers need"
    yield "`--url`.\n"
    rows = ((f"`{check.name}`", check.asserts, check.needs) for check in DOCTOR_CHECKS)
    yield from table(("check", "a healthy fleet", "looks at"), rows)
