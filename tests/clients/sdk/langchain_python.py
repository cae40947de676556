"""LangChain's chat models, over chat completions, responses and messages."""

from conversation import PARAMETERS, TEMPERATURE, WEATHER, count, serve
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI


def over_openai(job, responses):
    model = ChatOpenAI(
        model=job["model"],
        base_url=f"{job['url']}/v1",
        api_key=job["key"],
        temperature=TEMPERATURE,
        max_tokens=job["max_tokens"],
        max_retries=0,
        use_responses_api=responses,
        stream_usage=True,  # off by default for any base URL but OpenAI's
    )
    return conversation(job, model)


def over_anthropic(job):
    model = ChatAnthropic(
        model=job["model"],
        base_url=job["url"],
        api_key=job["key"],
        temperature=TEMPERATURE,
        max_tokens=job["max_tokens"],
        max_retries=0,
    )
    return conversation(job, model)


def conversation(job, model):
    history = []
    tool = {"type": "function", "function": WEATHER | {"parameters": PARAMETERS}}

    def ask(step, turn):
        if "user" in step:
            history.append(HumanMessage(step["user"]))
        else:
            history.append(ToolMessage(step["result"], tool_call_id=history[-1].tool_calls[0]["id"]))
        bound = model
        if job["tool"]:
            bound = model.bind_tools([tool], **({"tool_choice": "any"} if "user" in step else {}))
        if job["stream"]:
            answer = None
            for chunk in bound.stream(history):
                turn["text"] += chunk.text
                answer = chunk if answer is None else answer + chunk
        else:
            answer = bound.invoke(history)
            turn["text"] = answer.text
        history.append(answer)
        usage = answer.usage_metadata
        cached = usage["input_token_details"].get("cache_read")
        count(turn, usage["input_tokens"], usage["output_tokens"], cached)
        said = answer.response_metadata
        turn["finish"] = said.get("finish_reason") or said.get("stop_reason") or said.get("status")
        for call in answer.tool_calls:
            turn["tool"] = [call["name"], call["args"]]

    return ask


serve(
    {
        "chat": lambda job: over_openai(job, False),
        "responses": lambda job: over_openai(job, True),
        "messages": over_anthropic,
    }
)
