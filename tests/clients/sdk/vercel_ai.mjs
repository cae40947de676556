// Vercel's AI SDK: its providers for compatible servers (chat completions), OpenAI (responses) and Anthropic.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";
import { PARAMETERS, TEMPERATURE, WEATHER, count, serve } from "./conversation.mjs";

const PROVIDERS = {
  chat: ({ url, key }) =>
    createOpenAICompatible({ name: "router", baseURL: `${url}/v1`, apiKey: key, includeUsage: true }),
  responses: ({ url, key }) => createOpenAI({ baseURL: `${url}/v1`, apiKey: key }),
  messages: ({ url, key }) => createAnthropic({ baseURL: `${url}/v1`, apiKey: key }),
};
const tools = { weather: tool({ description: WEATHER.description, inputSchema: jsonSchema(PARAMETERS) }) };

function conversation(job) {
  const model = PROVIDERS[job.api](job)(job.model);
  const history = [];
  let called;
  return async (step, turn) => {
    if ("user" in step) history.push({ role: "user", content: step.user });
    else {
      const { toolCallId, toolName } = called;
      const output = { type: "text", value: step.result };
      history.push({ role: "tool", content: [{ type: "tool-result", toolCallId, toolName, output }] });
    }
    const request = { model, messages: history, temperature: TEMPERATURE, maxOutputTokens: job.max_tokens, maxRetries: 0 };
    request.providerOptions = { openai: { store: false } }; // else it sends item_reference, which vLLM does not know
    if (job.tool) Object.assign(request, { tools, toolChoice: "user" in step ? "required" : "auto" });
    const result = job.stream ? await streamed(request, turn) : await generateText(request);
    history.push(...(await result.response).messages);
    const usage = await result.usage;
    count(turn, usage.inputTokens, usage.outputTokens, usage.inputTokenDetails?.cacheReadTokens);
    Object.assign(turn, { text: await result.text, finish: await result.finishReason });
    for (called of await result.toolCalls) turn.tool = [called.toolName, called.input];
  };
}

async function streamed(request, turn) {
  const result = streamText({ ...request, onError: () => {} }); // else it prints them
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") turn.text += part.text;
    if (part.type === "error") throw part.error instanceof Error ? part.error : new StreamError(part.error);
  }
  return result;
}

// An error part of a stream is what the server wrote there, not always an Error.
class StreamError extends Error {
  constructor(part) {
    super(typeof part === "string" ? part : JSON.stringify(part));
  }
}

await serve({ chat: conversation, responses: conversation, messages: conversation });
