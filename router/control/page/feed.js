// The feed: server-sent events read with fetch, because EventSource cannot send a token. It reconnects by itself, also
// when the router is silent for longer than it should be.

import { ask } from "./admin.js";

const SILENT_MS = 6000; // beyond the interval between two pictures
const PAUSES_MS = [250, 500, 1000, 2000];

/** Read the feed without end. `on.event(name, data)`, `on.state("live" | "lost", error)`. Returns a function that ends it. */
export function follow(on) {
    let ended = false;
    let cut = new AbortController();

    async function run() {
        for (let failures = 0; !ended; failures++) {
            try {
                cut = new AbortController();
                await readOnce(cut, on, () => (failures = 0));
                on.state("lost", null);
            } catch (error) {
                if (ended) return;
                on.state("lost", error);
                if (error.status === 401 || error.status === 403) return;
            }
            const pause = PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)];
            await new Promise((resolve) => setTimeout(resolve, pause));
        }
    }

    run();
    return () => {
        ended = true;
        cut.abort();
    };
}

async function readOnce(cut, on, onPicture) {
    const answer = await ask("admin/live", { signal: cut.signal, headers: { accept: "text/event-stream" } });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    let intervalMs = 1000;
    for (;;) {
        const watchdog = setTimeout(() => cut.abort(), intervalMs + SILENT_MS);
        const { done, value } = await reader.read().finally(() => clearTimeout(watchdog));
        if (done) return;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
            const [name, data] = parse(event);
            if (name === "full") {
                onPicture();
                on.state("live", null);
            }
            intervalMs = 1000 * (data.router?.interval_s ?? intervalMs / 1000);
            on.event(name, data);
        }
    }
}

function parse(event) {
    const fields = Object.fromEntries(event.split("\n").map((line) => line.split(/: (.*)/s, 2)));
    return [fields.event, JSON.parse(fields.data)];
}
