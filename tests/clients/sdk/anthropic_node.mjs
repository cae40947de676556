// The anthropic package for JavaScript.
import Anthropic from "@anthropic-ai/sdk";
import { PARAMETERS, TEMPERATURE, WEATHER, count, serve } from "./conversation.mjs";

function messages(job) {
  const client = new Anthropic({ baseURL: job.url, apiKey: job.key, maxRetries: 0 });
  const history = [];
  return async (step, turn) => {
    if ("user" in step) history.push({ role: "user", content: step.user });
    else {
      const result = { type: "tool_result", tool_use_id: history.at(-1).content[0].id, content: step.result };
      history.push({ role: "user", content: [result] });
    }
    const request = { model: job.model, messages: history, temperature: TEMPERATURE, max_tokens: job.max_tokens };
    if (job.tool) {
      request.tools = [{ ...WEATHER, input_schema: PARAMETERS }];
      request.tool_choice = { type: "user" in step ? "any" : "auto" };
    }
    let answer;
    if (job.stream) {
      const stream = client.messages.stream(request);
      stream.on("text", (delta) => (turn.text += delta));
      answer = await stream.finalMessage();
    } else answer = await client.messages.create(request);
    history.push({ role: "assistant", content: answer.content });
    const cached = answer.usage.cache_read_input_tokens ?? 0;
    count(turn, answer.usage.input_tokens + cached, answer.usage.output_tokens, cached);
    turn.finish = answer.stop_reason;
    turn.text = answer.content.map((block) => block.text ?? "").join("");
    for (const block of answer.content) if (block.type === "tool_use") turn.tool = [block.name, block.input];
  };
}

await serve({ messages });
