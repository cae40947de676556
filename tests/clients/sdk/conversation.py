"""Reads jobs and writes outcomes, a line of JSON each: the part of a Python client's script that is not the client.

A job is one conversation: `api`, `url`, `key`, `model`, `stream`, `tool` (the first turn must call the weather tool),
and its `steps`, each `{"user": text}` or `{"result": text}` of the tool called before. The outcome has one dict per
turn: `text`, `tool`, `finish`, `prompt`, `output` and `cached` tokens, and `error`, which is what the client raised.
"""

import json
import sys

FIELDS = ("text", "tool", "finish", "prompt", "output", "cached", "error")
TEMPERATURE = 0
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Weather of a city"}


def serve(apis):
    """Do the jobs of standard input. `apis`: by name, a function (job) that returns a function (step, turn)."""
    for line in sys.stdin:
        job = json.loads(line)
        turns = []
        ask = apis[job["api"]](job)
        for step in job["steps"]:
            turns.append(dict.fromkeys(FIELDS) | {"text": ""})
            try:
                ask(step, turns[-1])
            except Exception as error:  # noqa: BLE001  whatever the client raises is what is tested
                turns[-1]["error"] = describe(error)
                break
        print(json.dumps(turns), flush=True)


def describe(error):
    """What a program can see of an error without reading its text, and the text."""
    response = getattr(error, "response", None)
    headers = {} if response is None else response.headers
    return {
        "type": type(error).__name__,
        "status": getattr(error, "status_code", None),
        "message": str(error),
        "retry_after": headers.get("retry-after"),
    }


def count(turn, prompt, output, cached):
    turn |= {"prompt": prompt, "output": output, "cached": cached or 0}
