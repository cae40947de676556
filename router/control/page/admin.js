// Requests to the admin API. The token is kept for this tab only and sent in a header: no cookie, so no other site's
// page can use it.

import { useEffect, useState } from "./lib.js";

const KEPT = "warmroute.token";

export const token = () => sessionStorage.getItem(KEPT) ?? "";
export const setToken = (text) => (text ? sessionStorage.setItem(KEPT, text) : sessionStorage.removeItem(KEPT));

export class Refused extends Error {
    constructor(status, message) {
        super(message);
        this.status = status;
    }
}

/** Fetch a path of the admin API. Throws `Refused` for an error answer, and what `fetch` throws. */
export async function ask(path, options = {}) {
    const headers = { accept: "application/json", ...options.headers };
    if (token()) headers.authorization = `Bearer ${token()}`;
    const answer = await fetch(path, { cache: "no-store", credentials: "omit", ...options, headers });
    if (answer.ok) return answer;
    const body = await answer.text();
    let message = body.slice(0, 300) || answer.statusText;
    try {
        message = JSON.parse(body).error.message ?? message;
    } catch {
        // not the router's own error: the text as it is
    }
    throw new Refused(answer.status, message);
}

export const read = async (path, options) => (await ask(path, options)).json();

/** Read a path now and every `everyMs` while the page is visible, and anew when `key` changes. Null: nothing yet. */
export function usePolled(path, everyMs, key) {
    const [found, setFound] = useState(null);
    const [error, setError] = useState(null);
    useEffect(() => {
        let ended = false;
        const load = () =>
            read(path).then(
                (answer) => !ended && (setFound(answer), setError(null)),
                (problem) => !ended && setError(problem),
            );
        load();
        const timer = setInterval(() => !document.hidden && load(), everyMs);
        return () => {
            ended = true;
            clearInterval(timer);
        };
    }, [path, everyMs, key]);
    return { found, error };
}

/** Send a change, or with `dryRun` only ask what it would do. */
export function send(method, path, body, contentType = "application/json") {
    return read(path, { method, body, headers: body === undefined ? {} : { "content-type": contentType } });
}
