"""The anthropic package for Python."""

import anthropic
from conversation import PARAMETERS, WEATHER, count, serve


def messages(job):
    client = anthropic.Anthropic(base_url=job["url"], api_key=job["key"], max_retries=0)
    history = []

    def ask(step, turn):
        if "user" in step:
            history.append({"role": "user", "content": step["user"]})
        else:
            result = {"type": "tool_result", "tool_use_id": history[-1]["content"][0].id, "content": step["result"]}
            history.append({"role": "user", "content": [result]})
        request = {"model": job["model"], "messages": history, "max_tokens": job["max_tokens"]}
        if job["tool"]:
            request |= {"tools": [WEATHER | {"input_schema": PARAMETERS}]}
            request |= {"tool_choice": {"type": "any" if "user" in step else "auto"}}
        answer = streamed(request, turn) if job["stream"] else client.messages.create(**request)
        history.append({"role": "assistant", "content": answer.content})
        usage = answer.usage
        cached = usage.cache_read_input_tokens or 0
        count(turn, usage.input_tokens + cached, usage.output_tokens, cached)
        turn |= {"finish": answer.stop_reason, "text": "".join(b.text for b in answer.content if b.type == "text")}
        for block in answer.content:
            if block.type == "tool_use":
                turn["tool"] = [block.name, block.input]

    def streamed(request, turn):
        with client.messages.stream(**request) as stream:
            for text in stream.text_stream:
                turn["text"] += text
            return stream.get_final_message()

    return ask


serve({"messages": messages})
