// Reads jobs and writes outcomes, a line of JSON each: as conversation.py, for clients in JavaScript.
import readline from "node:readline";

export const TEMPERATURE = 0;
export const PARAMETERS = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
export const WEATHER = { name: "weather", description: "Weather of a city" };

// apis: by name, a function (job) that returns an async function (step, turn)
export async function serve(apis) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const job = JSON.parse(line);
    const turns = [];
    const ask = apis[job.api](job);
    for (const step of job.steps) {
      const turn = { text: "", tool: null, finish: null, prompt: null, output: null, cached: null, error: null };
      turns.push(turn);
      try {
        await ask(step, turn);
      } catch (error) {
        turn.error = describe(error);
        break;
      }
    }
    process.stdout.write(JSON.stringify(turns) + "\n");
  }
}

function describe(error) {
  const headers = error.responseHeaders ?? Object.fromEntries(error.headers ?? []);
  return {
    type: error.name === "Error" ? error.constructor.name : error.name, // the AI SDK names its classes, others do not
    status: error.status ?? error.statusCode ?? null,
    message: String(error.message),
    retry_after: headers["retry-after"] ?? null,
  };
}

export function count(turn, prompt, output, cached) {
  Object.assign(turn, { prompt, output, cached: cached ?? 0 });
}
