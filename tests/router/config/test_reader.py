"""Reading the operator's files: what comes back, and every message for what is wrong."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.tools.whole_router import whole_config
from router.config.reader import (
    dump_yaml,
    load_policies,
    parse_client_keys,
    parse_experiment,
    parse_policies,
    parse_policy,
    read_all,
    read_any,
    read_client_keys,
    read_config,
    read_instances,
    read_policy_file,
)
from router.config.schema import Config, PolicyConfig
from router.config.sections.simulation import TroubleFile
from router.errors import ConfigError
from router.picker.credentials import make_self_signed
from tests.paths import CONFIGS

POLICY = "policies: {warm: {scorers: [{name: random}]}}\n"
MINIMAL = "fleet: {instances: [{url: 'http://10.0.0.1:8000'}]}\n" + POLICY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def put(folder: Path, text: str, name: str = "main.yaml") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def refusal(folder: Path, text: str) -> list[str]:
    """The lines said about a main file, without its name."""
    file = put(folder, text)
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    return [line.removeprefix(f"{file}:") for line in str(caught.value).splitlines()]


def test_the_smallest_file(folder: Path) -> None:
    config = read_config(put(folder, MINIMAL))
    assert [instance.id for instance in config.fleet.instances] == ["10.0.0.1:8000"]
    assert config.listen.port == 8000
    assert config.policies["warm"].picker.name == "best"


def test_paths_come_back_absolute(folder: Path) -> None:
    put(folder, "{}", "models/m/tokenizer.json")
    put(folder, "[]", "fleet.yaml")
    put(folder, "scorers: [{name: random}]", "policies/warm.yaml")
    text = "fleet: {file: fleet.yaml}\ntokenizers: {m: {path: models/m}}\npolicies_dir: policies\n"
    config = read_config(put(folder, text))
    assert config.fleet.file == str(folder / "fleet.yaml")
    assert config.tokenizers["m"].path == str(folder / "models/m")
    assert config.policies_dir == str(folder / "policies")


# what is written wrongly


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen: {prot: 1}", '1: listen.prot: unknown key "prot": did you mean "port"?'),
        ("door: {admission: true}", '1: door: the key "door" is now called "admission"'),
        ("tokens: {hand_ids: off}", '1: tokens.hand_ids: the key "hand_ids" is now called "token_id_passthrough"'),
        ("records: {ledger: {folder: x}}", '1: records.ledger: the key "ledger" is now called "decision_log"'),
        ("lisen: {}", '1: lisen: unknown key "lisen": did you mean "listen"?'),
        ("log: {zzz: 1}", '1: log.zzz: unknown key "zzz": known here: access, format, level'),
        (
            "listen:\n  port: '8000'",
            '2: listen.port: found the text "8000", wanted a whole number '
            "(port of the public listener; 0: the system chooses one)",
        ),
        (
            "listen: {port: 8000.5}",
            "1: listen.port: found the number 8000.5, wanted a whole number "
            "(port of the public listener; 0: the system chooses one)",
        ),
        (
            "listen: {port: true}",
            "1: listen.port: found true, wanted a whole number "
            "(port of the public listener; 0: the system chooses one)",
        ),
        (
            "listen: {port: 65536}",
            "1: listen.port: found the number 65536, wanted at most 65535 "
            "(port of the public listener; 0: the system chooses one)",
        ),
        (
            "log: {level: loud}",
            "1: log.level: found the text \"loud\", wanted 'debug', 'info', 'warning' or 'error' "
            "(lowest severity that is logged)",
        ),
        (
            "records: {keep: -1}",
            "1: records.keep: found the number -1, wanted at least 0 (most recent decision records kept in memory; "
            "0: none, so none can be found, and dry runs have nothing to decide again)",
        ),
        (
            "active: [a]",
            "1: active: found a list, wanted text "
            "(name of the policy that decides; a shipped one (`warmroute policies`) "
            "needs no file)",
        ),
        ("limits: 5", "1: limits: found the number 5, wanted keys such as `body_bytes:` and `body_budget_bytes:`"),
        (
            "limits:",
            "1: limits: nothing stands below it: write keys such as `body_bytes:` and `body_budget_bytes:`, "
            "indented below it, or remove the line",
        ),
        (
            "limits: {grace_s: {}}",
            "1: limits.grace_s: found keys with values, wanted a number "
            "(time that requests in progress have to finish after SIGTERM, seconds)",
        ),
        (
            "limits: {grace_s: 1e999}",
            "1: limits.grace_s: found the number inf, wanted a finite number "
            "(time that requests in progress have to finish after SIGTERM, seconds)",
        ),
        (
            "edge: {strip_fields: x}",
            '1: edge.strip_fields: found the text "x", wanted a list, with a dash before each entry '
            '(top-level JSON fields that are removed from client requests)',
        ),
        ("listen:\n  tls: {cert_file: a.pem}", "2: listen.tls.key_file: missing (PEM private key of the listener)"),
        (
            "admin:\n  host: 0.0.0.0",
            "2: admin.host: 0.0.0.0 lets other machines use the admin API, and it has no tokens: write 127.0.0.1, or "
            "add `tokens: [{name: NAME, hash: HASH}]` (HASH: `printf %s TOKEN | sha256sum`)",
        ),
        (
            "policies: {p: {scorers: []}}",
            "1: policies.p.scorers: found 0 entries, wanted at least 1 "
            "(scorers whose weighted costs are added up; the lowest sum is best)",
        ),
        ("policies: {p: {scorer: [{name: a}]}}", '1: policies.p.scorer: unknown key "scorer": did you mean "scorers"?'),
        (
            "fleet:\n  instances:\n    - url: http://a\n    - uri: http://b",
            '4: fleet.instances[1].uri: unknown key "uri": did you mean "url"?',
        ),
        (
            "fleet: {instances: [{url: http://a, kv_events: on}]}",
            "1: fleet.instances[0].kv_events: found the text \"on\", wanted 'auto' or 'off' "
            "(where the KV events come from; auto: query the engine "
            "(GET /kv_event_sources); off: no events, the index is estimated from routed "
            'prompts; or a list of sources by rank, such as [{endpoint: "tcp://10.0.0.5:5557"}])',
        ),
        (
            "fleet:\n  instances:\n    - url: http://a\n      kv_events:\n        - endpont: tcp://a:1",
            '5: fleet.instances[0].kv_events[0].endpont: unknown key "endpont": did you mean "endpoint"?',
        ),
        (
            "fleet: {instances: [{url: http://a, name: a/b}]}",
            '1: fleet.instances[0].name: found the text "a/b", wanted letters, digits, dots, colons, '
            "dashes and underscores, a letter or digit first "
            "(id of the instance in logs, metrics and headers; null: host:port of `url`)",
        ),
        ("- 1", "1: found a list, wanted keys such as `listen:` and `fleet:`, without dashes or brackets"),
        ("7", "1: found the number 7, wanted keys such as `listen:` and `fleet:`"),
    ],
)  # fmt: skip
def test_messages_for_wrong_text(folder: Path, text: str, said: str) -> None:
    assert said in refusal(folder, text)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://a:1/v1", "found a path after the port, wanted the URL without it: http://a:1"),
        ("http://a/", "found a path after the port, wanted the URL without it: http://a"),
        ("http://a?key=hush", "found a query after the port, wanted the URL without it: http://a"),
        ("http://me:hush@a", "found a user or password, wanted scheme, host and port alone"),
        ("a:8000", "found no scheme, wanted http:// or https:// before the host: http://a:8000"),
        ("a", "found no scheme, wanted http:// or https:// before the host: http://a"),
        ("[::1]:8000", "found no scheme, wanted http:// or https:// before the host: http://[::1]:8000"),
        ("ftp://hush", "found the scheme ftp://, wanted http:// or https://"),
        ("a:8000/v1", "found no scheme, wanted http:// or https:// before the host"),
        ("http:/hush", "found text that does not begin with http:// or https://, wanted a URL such as http://10"),
        ("http://a hush", "found a space or no host, wanted scheme, host and port alone"),
        ("http://", "found a space or no host, wanted scheme, host and port alone"),
    ],
)
def test_urls_are_bare_and_secrets_are_not_repeated(folder: Path, url: str, problem: str) -> None:
    (said,) = refusal(folder, f'fleet: {{instances: [{{url: "{url}"}}]}}\n' + POLICY)
    assert said.startswith(f"1: fleet.instances[0].url: {problem}")
    assert "hush" not in said


@pytest.mark.parametrize("port", ["70000", "x", ""])
def test_urls_have_a_port_that_can_be(folder: Path, port: str) -> None:
    (said,) = refusal(folder, f'fleet: {{instances: [{{url: "http://a:{port}"}}]}}\n' + POLICY)
    assert (
        said
        == "1: fleet.instances[0].url: found a port that is not a number from 1 to 65535, wanted that of the server"
    )


def test_a_token_in_the_place_of_its_hash_is_not_repeated(folder: Path) -> None:
    said = refusal(folder, MINIMAL + "admin: {tokens: [{name: me, hash: my-secret}]}")
    assert len(said) == 1
    assert "my-secret" not in said[0]


def test_everything_wrong_is_said_at_once_in_order(folder: Path) -> None:
    text = "log: {level: 5}\nlisten: {prot: 1}\nusage: x\n"
    said = [line.split(": ")[:2] for line in refusal(folder, text)]
    assert said == [["1", "log.level"], ["2", "listen.prot"], ["3", "usage"]]


# what is referred to


def test_references_that_lead_nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    text = """\
listen: {tls: {cert_file: c.pem, key_file: k.pem}}
clients: {keys_file: keys}
fleet:
  file: fleet.yaml
  instances:
    - {url: http://a, api_key_env: NOT_SET, ca_file: ca.pem}
tokenizers:
  m: {path: model}
  n: {chat_template: chat.jinja}
policies_dir: policies
index: {key_secret_env: NOT_SET}
"""
    at, unset = (
        str(folder),
        "the environment variable NOT_SET is not set here: set it for this command and for the router",
    )
    assert refusal(folder, text) == [
        f"1: listen.tls.cert_file: no such file: {at}/c.pem; correct the path",
        f"1: listen.tls.key_file: no such file: {at}/k.pem; correct the path",
        f"2: clients.keys_file: no such file: {at}/keys; correct the path",
        f"4: fleet.file: no such file: {at}/fleet.yaml; correct the path",
        f"6: fleet.instances[0].api_key_env: {unset}",
        f"6: fleet.instances[0].ca_file: no such file: {at}/ca.pem; correct the path",
        f"8: tokenizers.m.path: no such folder: {at}/model; correct the path",
        f"9: tokenizers.n.chat_template: no such file: {at}/chat.jinja; correct the path",
        f"10: policies_dir: no such folder: {at}/policies; correct the path",
        f"11: index.key_secret_env: {unset}",
    ]


def test_the_secret_of_replicas_is_not_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "fleet: {instances: [{url: http://a}]}\nreplicas: {peers: ['10.0.0.1:9004'], secret_env: SHARED}\n" + POLICY
    monkeypatch.setenv("SHARED", "fifteen letters")
    assert refusal(folder, text) == [
        "2: replicas.secret_env: the secret in SHARED has fewer than 16 characters: openssl rand -hex 32 makes one",
    ]
    monkeypatch.setenv("SHARED", "sixteen letters!")
    assert read_config(put(folder, text)).replicas is not None
    cases = [
        ("neither `peers` nor `dns` nor `selector`: give one of them", ""),
        ("`peers` and `selector`: keep one of them", "peers: ['10.0.0.1:9004'], selector: app=warmroute, "),
        ("`dns` and `selector`: keep one of them", "dns: a, selector: b, "),
    ]
    for found, where in cases:
        text = f"fleet: {{instances: [{{url: http://a}}]}}\nreplicas: {{{where}secret_env: SHARED}}\n" + POLICY
        assert refusal(folder, text) == [f"2: replicas: the section has {found}"]


def test_a_variable_that_is_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "hush-hush")
    config = read_config(put(folder, "fleet: {instances: [{url: http://a, api_key_env: ENGINE_KEY}]}\n" + POLICY))
    assert config.fleet.instances[0].api_key_env == "ENGINE_KEY"
    assert "hush-hush" not in dump_yaml(config)


def test_who_starts_an_instance(folder: Path) -> None:
    text = "fleet: {{embedded: {{}}}}\nwake: {{models: {{m: {{{}}}}}}}\n" + POLICY.replace("{", "{{").replace("}", "}}")
    both = "deployment: {name: d}, webhook: {url: http://h}"
    assert refusal(folder, text.format(both)) == [
        "2: wake.models.m: the model has `webhook` and `deployment`: keep one of them"
    ]
    said = "2: wake.models.m: the model has neither `webhook` nor `deployment`: give one of them"
    assert refusal(folder, text.format("")) == [f"{said}, or the section `keda`: KEDA starts it"]
    assert read_config(put(folder, text.format("") + "keda: {}\n")).keda is not None


def test_a_fleet_needs_a_source(folder: Path) -> None:
    said = "1: fleet: found no engines, wanted at least one of instances, file, dns, kubernetes and embedded"
    assert refusal(folder, "fleet: {health: {interval_s: 1}}\n" + POLICY) == [said]
    assert refusal(folder, POLICY) == [said]
    assert read_config(put(folder, "fleet: {embedded: {}}\n" + POLICY)).fleet.embedded is not None


def test_two_instances_of_one_name(folder: Path) -> None:
    instances = "    - {url: http://a, name: x}\n    - {url: http://b, name: x}\n"
    said = refusal(folder, "fleet:\n  instances:\n" + instances + POLICY)
    assert said == [
        '3: fleet.instances[0]: found two instances called "x": give each its own `name`',
        '4: fleet.instances[1]: found two instances called "x": give each its own `name`',
    ]


@pytest.mark.parametrize("again", ["{url: http://a}", "{url: 'http://A:80', name: y}", "{url: https://a:80, name: y}"])
def test_one_engine_under_two_names(folder: Path, again: str) -> None:
    instances = f"    - {{url: http://a, name: x}}\n    - {again}\n"
    (said,) = refusal(folder, "fleet:\n  instances:\n" + instances + POLICY)
    assert said.startswith(
        '4: fleet.instances[1].url: found the address of instance "x" again, wanted one instance per '
    )


def test_the_address_that_an_engine_binds_is_none_to_connect_to(folder: Path) -> None:
    events = """
      kv_events:
        - endpoint: tcp://*:5557
          replay_endpoint: tcp://0.0.0.0:5657
        - {rank: 1, endpoint: "tcp://[::]:5558", replay_endpoint: "tcp://10.0.0.1:5658"}
        - {rank: 2, endpoint: "ipc:///run/*"}
"""
    said = refusal(folder, "fleet:\n  instances:\n    - url: http://10.0.0.1:8000" + events + POLICY)
    key = "fleet.instances[0].kv_events"
    assert [line.partition(", at which")[0] for line in said] == [
        f'5: {key}[0].endpoint: found the host "*"',
        f'6: {key}[0].replay_endpoint: found the host "0.0.0.0"',
        f'7: {key}[1].endpoint: found the host "[::]"',
    ]
    written = [line[line.index("write ") :].partition(", or")[0] for line in said]
    assert written == ["write tcp://10.0.0.1:5557", "write tcp://10.0.0.1:5657", "write tcp://10.0.0.1:5558"]
    said = refusal(folder, "fleet: {instances: [{url: http://a, kv_events: [{endpoint: 'a:5557'}]}]}\n" + POLICY)
    assert said[0].startswith(
        f"1: {key}[0].endpoint: found no scheme, wanted tcp:// or ipc:// before the host: tcp://a:5557"
    )


def test_one_rank_twice(folder: Path) -> None:
    events = "kv_events: [{endpoint: 'tcp://a:1'}, {endpoint: 'tcp://a:2', rank: 0}]"
    said = refusal(folder, f"fleet: {{instances: [{{url: http://a, {events}}}]}}\n" + POLICY)
    assert said == ["1: fleet.instances[0].kv_events[1].rank: found rank 0 again, wanted each rank once"]


@pytest.mark.parametrize(
    ("instance", "complaint"),
    [
        ("role: decode", ".transfer: missing, wanted with role decode: give `transfer: {protocol: nixl}` or mooncake"),
        (
            "role: prefill, transfer: {protocol: mooncake}",
            ".transfer: found no bootstrap_url, which a prefill instance with protocol mooncake needs: give it",
        ),
        ("role: prefill, transfer: {protocol: nixl}", None),
        ("role: decode, transfer: {protocol: mooncake}", None),
        ("role: prefill, transfer: {protocol: mooncake, bootstrap_url: 'http://a:8998'}", None),
    ],
)
def test_halves_of_a_pair_say_how_kv_gets_across(folder: Path, instance: str, complaint: str | None) -> None:
    text = f"fleet: {{instances: [{{url: 'http://a', {instance}}}]}}\n" + POLICY
    if complaint is None:
        assert read_config(put(folder, text)).fleet.instances[0].transfer is not None
    else:
        assert refusal(folder, text) == [f"1: fleet.instances[0]{complaint}"]


def test_the_active_policy_must_exist(folder: Path) -> None:
    assert refusal(folder, MINIMAL + "active: wram\n") == ['3: active: unknown policy "wram": did you mean "warm"?']
    assert refusal(folder, "fleet: {embedded: {}}\nactive: x\n")[0].startswith(
        '2: active: unknown policy "x": known here: '
    )


# policies


def test_policies_from_both_places(folder: Path) -> None:
    put(
        folder,
        "scorers: [{name: kv_usage, weight: 2, stale_s: 3}]\npicker: {name: softmax, temperature: 0.1}",
        "p/b.yaml",
    )
    put(folder, "no policy", "p/readme.txt")
    policies = load_policies(read_config(put(folder, MINIMAL + "policies_dir: p\n")))
    assert sorted(policies) == ["b", "warm"]
    assert policies["b"].scorers[0].model_extra == {"stale_s": 3}
    assert policies["b"].picker.model_extra == {"temperature": 0.1}


def test_a_policies_dir_that_is_not_there(folder: Path) -> None:
    with pytest.raises(ConfigError, match="policies_dir: no such folder"):
        load_policies(Config(policies_dir=str(folder / "q")))


def test_a_shipped_policy_is_found_by_its_name_unless_there_is_an_own_one(folder: Path) -> None:
    own = put(folder, "scorers: [{name: random}]", "p/lmetric.yaml")
    text = MINIMAL + "policies_dir: p\nactive: lmetric\nexperiment: {arms: {warm: 100}, shadows: [round_robin]}\n"
    policies = load_policies(read_config(put(folder, text)))
    assert policies["lmetric"] == read_policy_file(own)
    assert policies["round_robin"] == read_policy_file(CONFIGS / "policies" / "round_robin.yaml")
    assert sorted(policies) == ["lmetric", "round_robin", "warm"]
    assert refusal(folder, MINIMAL + "active: lmetrik\n")[0].endswith(
        'unknown policy "lmetrik": did you mean "lmetric"?'
    )
    assert "dynamo_cost, expected_ttft" in refusal(folder, MINIMAL + "active: zzz\n")[0]


def test_every_broken_policy_file_is_named(folder: Path) -> None:
    put(folder, "scorers: [{name: random}]", "p/warm.yaml")
    put(folder, "scorers: [{nam: random}]", "p/one.yaml")
    put(folder, "", "p/two.yml")
    said = refusal(folder, MINIMAL + "policies_dir: p\nactive: one\n")
    at = folder / "p"
    assert said == [
        f"{at}/one.yaml:1: scorers[0].name: missing (registered name, see docs/reference/plugins.md)",
        f"{at}/two.yml:1: the file is empty",
        f'{at}/warm.yaml: there is already a policy "warm", inline or in another file: rename one',
    ]


def test_a_policy_file_alone(folder: Path) -> None:
    policy = read_policy_file(put(folder, "filters: [{name: max_waiting}]\nscorers: [{name: random}]"))
    assert [plugin.name for plugin in policy.filters] == ["max_waiting"]
    assert policy.scorers[0].weight == 1.0
    with pytest.raises(ConfigError, match="weight: found the number -1, wanted at least 0"):
        read_policy_file(put(folder, "scorers: [{name: random, weight: -1}]"))


def test_main_files_and_others_are_told_apart(folder: Path) -> None:
    assert isinstance(read_any(put(folder, MINIMAL)), Config)
    assert isinstance(read_any(put(folder, "scorers: [{name: random}]")), PolicyConfig)
    assert isinstance(read_any(put(folder, "events_lost: 0.1")), TroubleFile)
    with pytest.raises(ConfigError, match="wanted keys such as"):
        read_any(put(folder, "[]"))


# the list of instances


def test_a_list_of_instances(folder: Path) -> None:
    put(folder, make_self_signed(time.time())[1].decode(), "lists/ca.pem")
    file = put(folder, "- url: http://a:1\n- {url: 'https://b', name: b, ca_file: ca.pem}\n", "lists/fleet.yaml")
    a, b = read_instances(file)
    assert (a.id, b.id, b.ca_file) == ("a:1", "b", str(folder / "lists/ca.pem"))
    assert read_instances(put(folder, "[]", "none.yaml")) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1: the file is empty"),
        ("url: http://a", "1: found keys with values, wanted a list"),
        ("- url: http://a\n- http://b", '2: [1]: found the text "http://b", wanted keys such as `url: http://b`'),
        ("- url: http://a\n  nme: b", '2: [0].nme: unknown key "nme": did you mean "name"?'),
        ("- {}", "1: [0].url: missing (base URL of the engine, without a path)"),
        ("- {url: http://a, ca_file: ca.pem}", "1: [0].ca_file: no such file: "),
    ],
)
def test_a_list_of_instances_that_is_not_right(folder: Path, text: str, said: str) -> None:
    file = put(folder, text, "fleet.yaml")
    with pytest.raises(ConfigError) as caught:
        read_instances(file)
    assert str(caught.value).startswith(f"{file}:{said}")


def test_a_broken_list_is_found_with_the_main_file(folder: Path) -> None:
    put(folder, "- {}", "fleet.yaml")
    (said,) = refusal(folder, "fleet: {file: fleet.yaml}\n" + POLICY)
    assert said.startswith(f"{folder}/fleet.yaml:1: [0].url: missing")


# client keys


def test_client_keys(folder: Path) -> None:
    digest = hashlib.sha256(b"key").hexdigest()
    file = put(folder, f"# ours\n{digest.upper()}  team search # a comment\n\n", "keys")
    assert read_client_keys(file) == {digest: "team search"}


def test_client_keys_that_are_not_hashes_are_not_repeated(folder: Path) -> None:
    put(folder, "sk-plain-key me\n" + "a" * 64 + "\n", "keys")
    said = refusal(folder, MINIMAL + "clients: {keys_file: keys}\n")
    wanted = "found text of another form (not shown: it may be a secret), wanted the sha256 of a key "
    wanted += "and the name of its client (`printf %s KEY | sha256sum`)"
    assert said == [f"{folder}/keys:1: {wanted}", f"{folder}/keys:2: {wanted}"]


@pytest.mark.parametrize(
    "key",
    [
        "limits.retry_burst",
        "limits.retry_ratio",
        "limits.continuation_bytes",
        "limits.responses_kept",
        "tokens.inline_chars",
        "tokens.memory_bytes",
        "index.orphan_blocks",
        "records.keep",
    ],
)
def test_what_may_be_nothing_may_be_0(folder: Path, key: str) -> None:
    section, name = key.split(".")
    config = read_config(put(folder, MINIMAL + f"{section}: {{{name}: 0}}\n"))
    assert getattr(getattr(config, section), name) == 0


UNPRINTABLE = ["a\x1fb", "a\x00b", "a\tb", "a\x7f", "a\u202eb", "a\u200b", "n" * 129]


@pytest.mark.parametrize("name", UNPRINTABLE)
def test_names_of_clients_are_printable_in_every_file(folder: Path, name: str) -> None:
    """Names that clients choose are joined with them by a character that they must not have."""
    problem = "a client's name has 1 to 128 printable characters"
    with pytest.raises(ConfigError, match=f"^keys:2: {problem}$"):
        parse_client_keys(f"{'a' * 64} chat\n{'b' * 64} {name}\n".encode(), "keys")
    put(folder, "a" * 64 + " chat\n", "keys")
    quoted = json.dumps(name)
    for section in (
        f"tenants: {{{quoted}: {{}}}}",
        f"tenants: {{a: {{cache_group: {quoted}}}}}",
        f"service_classes: {{{quoted}: {{}}}}",
    ):
        (said,) = refusal(folder, MINIMAL + f"clients: {{keys_file: keys, {section}}}\n")
        assert "a name has 1 to 128 printable characters" in said, section
        assert said.isprintable()
    for empty in ('tenants: {"": {}}', 'tenants: {a: {cache_group: ""}}', 'service_classes: {"": {}}'):
        (said,) = refusal(folder, MINIMAL + f"clients: {{keys_file: keys, {empty}}}\n")
        assert "a name has 1 to 128 printable characters" in said, empty


def test_of_a_file_that_is_no_keys_file_only_the_first_lines_are_read() -> None:
    """All lines of 64 MiB took 6 GB."""
    with pytest.raises(ConfigError) as refused:
        parse_client_keys(b"x\n" * 1000, "keys")
    assert (len(refused.value.complaints), refused.value.omitted) == (20, 0)


# the effective configuration


def test_effective_has_every_default_and_reads_back_the_same(folder: Path) -> None:
    config = read_config(put(folder, MINIMAL + "log: {level: debug}\n"))
    text = dump_yaml(config)
    assert "busy_interval_s: 0.25" in text
    assert read_config(put(folder, text, "again.yaml")) == config


def test_effective_with_every_feature_reads_back_the_same(folder: Path) -> None:
    """A key that may only be set beside another one may have its default alone."""
    config = whole_config(folder)
    assert read_config(put(folder, dump_yaml(config), "again.yaml")) == config


def test_effective_with_all_policies_inline(folder: Path) -> None:
    put(folder, "scorers: [{name: kv_usage, stale_s: 3}]", "p/b.yaml")
    config = read_config(put(folder, MINIMAL + "policies_dir: p\nactive: b\n"))
    again = read_config(put(folder, dump_yaml(config, load_policies(config)), "again.yaml"))
    assert again.policies == load_policies(config)
    assert again.policies_dir is None


def test_effective_of_a_policy(folder: Path) -> None:
    policy = read_policy_file(put(folder, "scorers: [{name: random}]"))
    assert read_policy_file(put(folder, dump_yaml(policy))) == policy


def test_a_fleet_alone_is_a_configuration(folder: Path) -> None:
    config = read_config(put(folder, "fleet: {instances: [{url: 'http://127.0.0.1:8100'}]}"))
    shipped = CONFIGS / "policies" / "warm.yaml"
    assert load_policies(config) == {config.active: read_policy_file(shipped)}


# texts that were sent


def test_policies_and_experiments_from_texts() -> None:
    policy = PolicyConfig.model_validate({"scorers": [{"name": "random"}]})
    assert parse_policy("scorers: [{name: random}]", "mine") == policy
    assert parse_policies("a: {scorers: [{name: random}]}\nb: {scorers: [{name: random}]}") == {
        "a": policy,
        "b": policy,
    }
    section = "arms: {a: 90, b: 10}\n"
    alone = parse_experiment(section, ["a", "b"], "a")
    assert alone.shares == {"a": 90.0, "b": 10.0}
    assert parse_experiment("experiment:\n  " + section, ["a", "b"], "a") == alone


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (
            lambda: parse_policy("scorers: []", "p"),
            "policy p:1: scorers: found 0 entries, wanted at least 1",
        ),
        (lambda: parse_policies("a: {scorers: [{nam: x}]}"), "policies:1: a.scorers[0].name: missing"),
        (lambda: parse_policies("{}"), "policies:1: there is none: wanted at least one policy, by its name"),
        (lambda: parse_experiment("x: 1", [], "a"), 'experiment:1: x: unknown key "x"'),
        (
            lambda: parse_experiment("arms:\n  a: 90\n  c: 10\nshadows: [d]", ["a", "b"], "a"),
            'experiment:3: arms.c: unknown policy "c": known here: a, b\n'
            'experiment:4: shadows[0]: unknown policy "d": known here: a, b',
        ),
        (
            lambda: parse_experiment("experiment:\n  arms: {a: 90, b: 10, c: 1}", ["a", "b", "c"], "a"),
            "experiment:2: experiment.arms: found shares that add up to 101, wanted 100 (percent)",
        ),
    ],
)
def test_what_is_wrong_with_texts(read: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read()
    assert said in str(refused.value)


def test_the_policies_come_with_the_main_file(folder: Path) -> None:
    put(folder, "scorers: [{name: random}]", "p/b.yaml")
    config, policies = read_all(put(folder, MINIMAL + "policies_dir: p\n"))
    assert config == read_config(folder / "main.yaml")
    assert policies == load_policies(config)


def test_as_many_plugins_and_policies_as_anybody_needs() -> None:
    def listed(count: int, name: str = "random") -> str:
        return ", ".join(f"{{name: {name}}}" for _ in range(count))

    assert len(parse_policy(f"scorers: [{listed(1)}]\nfilters: [{listed(64, 'max_waiting')}]", "p").filters) == 64
    for key, other in (("scorers", "filters"), ("filters", "scorers")):
        with pytest.raises(ConfigError, match=f"^policy p:1: {key}: found 65 entries, wanted at most 64 "):
            parse_policy(f"{key}: [{listed(65)}]\n{other}: [{listed(1)}]", "p")
    with pytest.raises(ConfigError, match="found 257 entries, wanted at most 256"):
        parse_policies("\n".join(f"p{n}: {{scorers: [{{name: random}}]}}" for n in range(257)))
    with pytest.raises(ConfigError, match=r"^experiment:1: arms: found 33 entries, wanted at most 32"):
        parse_experiment("arms: {" + ", ".join(f"a{n}: 1" for n in range(33)) + "}", [], "a")
    with pytest.raises(ConfigError, match=r"^experiment:2: shadows: found 33 entries, wanted at most 32"):
        parse_experiment("arms: {a: 100}\nshadows: [" + "b, " * 33 + "]", ["a", "b"], "a")


def test_as_many_policy_files(folder: Path) -> None:
    for n in range(257):
        put(folder, "scorers: [{name: random}]", f"policies/p{n}.yaml")
    said = refusal(folder, MINIMAL.replace(POLICY, "policies_dir: policies\n"))
    assert said == [f"policies_dir: {folder / 'policies'}: 257 files, and at most 256 policies in all"]


def test_twenty_complaints_and_the_number_of_the_others(folder: Path) -> None:
    said = refusal(folder, MINIMAL + "".join(f"key{n}: 1\n" for n in range(3_000)))
    assert len(said) == 21
    assert said[0].startswith('3: key0: unknown key "key0": ')
    assert said[-1] == "and 2,980 more"


def test_complaints_over_several_files_are_counted_together(folder: Path) -> None:
    for name in "ab":
        put(folder, "scorers: [{name: random}]\n" + "".join(f"k{n}: 1\n" for n in range(100)), f"policies/{name}.yaml")
    said = refusal(folder, MINIMAL.replace(POLICY, "policies_dir: policies\nactive: nobody\n"))
    assert (len(said), said[-1]) == (21, "and 180 more")


def test_long_names_are_cut(folder: Path) -> None:
    long = "x" * 1_000
    said = refusal(folder, MINIMAL + f"{long}: 1\nlisten: {{host: 1, {long}: 2}}\nlog: {{level: {long * 50}}}\n")
    assert len(said) == 4
    assert all(len(line) <= 1_010 for line in said)
