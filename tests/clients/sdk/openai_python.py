"""The openai package for Python: chat completions and responses."""

import json

import openai
from conversation import PARAMETERS, TEMPERATURE, WEATHER, count, serve


def connect(job):
    return openai.OpenAI(base_url=f"{job['url']}/v1", api_key=job["key"], max_retries=0)


def chat(job):
    client, history = connect(job), []
    tools = [{"type": "function", "function": WEATHER | {"parameters": PARAMETERS}}]

    def ask(step, turn):
        if "user" in step:
            history.append({"role": "user", "content": step["user"]})
        else:
            call = history[-1]["tool_calls"][0]
            history.append({"role": "tool", "tool_call_id": call["id"], "content": step["result"]})
        request = {"model": job["model"], "messages": history, "temperature": TEMPERATURE}
        request |= {"max_tokens": job["max_tokens"]}
        if job["tool"]:
            request |= {"tools": tools, "tool_choice": "required" if "user" in step else "auto"}
        message = streamed(request, turn) if job["stream"] else whole(request, turn)
        history.append(message)
        for call in message.get("tool_calls") or []:
            turn["tool"] = [call["function"]["name"], json.loads(call["function"]["arguments"])]

    def whole(request, turn):
        answer = client.chat.completions.create(**request)
        usage, choice = answer.usage, answer.choices[0]
        count(turn, usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens)
        turn |= {"text": choice.message.content, "finish": choice.finish_reason}
        return choice.message.model_dump(exclude_none=True)

    def streamed(request, turn):
        calls = {}
        for chunk in client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
            if (usage := chunk.usage) is not None:
                count(turn, usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens)
            for choice in chunk.choices:
                turn["text"] += choice.delta.content or ""
                turn["finish"] = choice.finish_reason or turn["finish"]
                for part in choice.delta.tool_calls or []:
                    call = calls.setdefault(part.index, {"type": "function", "function": {"arguments": ""}})
                    if part.id:
                        call["id"], call["function"]["name"] = part.id, part.function.name
                    call["function"]["arguments"] += part.function.arguments or ""
        message = {"role": "assistant", "content": turn["text"]}
        return message | ({"tool_calls": list(calls.values())} if calls else {})

    return ask


def responses(job):
    client, history = connect(job), []
    tools = [{"type": "function", "strict": False, "parameters": PARAMETERS} | WEATHER]

    def ask(step, turn):
        if "user" in step:
            history.append({"role": "user", "content": step["user"]})
        else:
            history.append({"type": "function_call_output", "call_id": history[-1].call_id, "output": step["result"]})
        request = {"model": job["model"], "input": history, "temperature": TEMPERATURE}
        request |= {"max_output_tokens": job["max_tokens"]}
        if job["tool"]:
            request |= {"tools": tools, "tool_choice": "required" if "user" in step else "auto"}
        answer = streamed(request, turn) if job["stream"] else client.responses.create(**request)
        history.extend(answer.output)
        usage = answer.usage
        count(turn, usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens)
        turn |= {"text": answer.output_text, "finish": answer.status}
        for item in answer.output:
            if item.type == "function_call":
                turn["tool"] = [item.name, json.loads(item.arguments)]

    def streamed(request, turn):
        for event in client.responses.create(**request, stream=True):
            if event.type == "response.output_text.delta":
                turn["text"] += event.delta
            if event.type == "response.completed":
                return event.response
            if event.type == "response.failed":
                raise RuntimeError(f"response.failed: {event.response.error.message}")
        raise EOFError("the stream ended without response.completed")

    return ask


serve({"chat": chat, "responses": responses})
