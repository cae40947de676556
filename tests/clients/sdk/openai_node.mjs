// The openai package for JavaScript: chat completions and responses.
import OpenAI from "openai";
import { PARAMETERS, TEMPERATURE, WEATHER, count, serve } from "./conversation.mjs";

const connect = (job) => new OpenAI({ baseURL: `${job.url}/v1`, apiKey: job.key, maxRetries: 0 });

function chat(job) {
  const client = connect(job);
  const history = [];
  const tools = [{ type: "function", function: { ...WEATHER, parameters: PARAMETERS } }];
  return async (step, turn) => {
    if ("user" in step) history.push({ role: "user", content: step.user });
    else history.push({ role: "tool", tool_call_id: history.at(-1).tool_calls[0].id, content: step.result });
    const request = { model: job.model, messages: history, temperature: TEMPERATURE, max_tokens: job.max_tokens };
    if (job.tool) Object.assign(request, { tools, tool_choice: "user" in step ? "required" : "auto" });
    let answer;
    if (job.stream) {
      const stream = client.chat.completions.stream({ ...request, stream_options: { include_usage: true } });
      stream.on("content", (delta) => (turn.text += delta));
      answer = await stream.finalChatCompletion();
    } else answer = await client.chat.completions.create(request);
    const { message, finish_reason } = answer.choices[0];
    history.push(message);
    Object.assign(turn, { text: message.content ?? "", finish: finish_reason });
    const { prompt_tokens, completion_tokens, prompt_tokens_details } = answer.usage;
    count(turn, prompt_tokens, completion_tokens, prompt_tokens_details?.cached_tokens);
    for (const call of message.tool_calls ?? []) turn.tool = [call.function.name, JSON.parse(call.function.arguments)];
  };
}

function responses(job) {
  const client = connect(job);
  const history = [];
  const tools = [{ type: "function", strict: false, ...WEATHER, parameters: PARAMETERS }];
  return async (step, turn) => {
    if ("user" in step) history.push({ role: "user", content: step.user });
    else history.push({ type: "function_call_output", call_id: history.at(-1).call_id, output: step.result });
    const request = { model: job.model, input: history, temperature: TEMPERATURE, max_output_tokens: job.max_tokens };
    if (job.tool) Object.assign(request, { tools, tool_choice: "user" in step ? "required" : "auto" });
    const answer = job.stream ? await streamed(request, turn) : await client.responses.create(request);
    history.push(...answer.output);
    Object.assign(turn, { text: answer.output_text, finish: answer.status });
    count(turn, answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.input_tokens_details?.cached_tokens);
    for (const item of answer.output)
      if (item.type === "function_call") turn.tool = [item.name, JSON.parse(item.arguments)];
  };

  async function streamed(request, turn) {
    const stream = client.responses.stream(request);
    stream.on("response.output_text.delta", (event) => (turn.text += event.delta));
    return await stream.finalResponse();
  }
}

await serve({ chat, responses });
