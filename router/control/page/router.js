// The router itself: version, uptime, its workers, and the configuration in force.

import { ask, usePolled } from "./admin.js";
import { count, duration, momentOf, plural } from "./format.js";
import { html, useEffect, useState } from "./lib.js";

const REFRESH_MS = 5000;

export function RouterFacts({ store }) {
    const { version, started_at_s, run, workers, policies, discovery, late_ms } = store.router;
    const facts = [
        ["version", version],
        ["up for", `${uptime(store.now - started_at_s)}, since ${momentOf(started_at_s)}`],
        ["run", html`${run} <span class="faint">(record ids begin with it)</span>`],
        ["workers", `${count(workers[0])} of ${count(workers[1])} up`],
        ["event loop", `${duration(late_ms)} late at most in the last minute`],
        ["policy", store.router.experiment ? "an experiment runs" : policies.active],
        ["discovery", Object.entries(discovery).map(([source, trouble]) => `${source}: ${trouble ?? "current"}`).join("; ")],
        ["in force after a restart", policies.needs_restart.join(", ") || "nothing: the file is in force"],
    ];
    return html`<section class="panel"><h2>This router</h2>
      <dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl></section>
    ${workers[1] > 1 ? html`<${Workers} />` : ""}
    <${Configuration} inForce=${JSON.stringify([policies.active, policies.experiment, policies.switches])} />`;
}

/** Seconds as the two largest units: 3 d 4 h, 12 min 5 s. */
function uptime(seconds) {
    const units = [
        ["d", 86400],
        ["h", 3600],
        ["min", 60],
        ["s", 1],
    ];
    const largest = Math.max(
        0,
        units.findIndex(([, s]) => seconds >= s),
    );
    let rest = Math.max(0, Math.floor(seconds));
    return units
        .slice(largest, largest + 2)
        .map(([name, s]) => {
            const n = Math.floor(rest / s);
            rest -= n * s;
            return `${n} ${name}`;
        })
        .join(" ");
}

function Workers() {
    const { found, error } = usePolled("admin/workers", REFRESH_MS);
    if (error) return html`<p role="alert" class="error">${error.message}</p>`;
    if (!found) return html`<p class="faint">Reading the workers …</p>`;
    return html`<section class="panel"><h2>Workers</h2><div class="wide" tabindex="0" role="region" aria-label="Workers"><table>
      <thead><tr><th scope="col">number</th><th scope="col">pid</th><th scope="col" class="text">run</th><th scope="col" class="text">state</th></tr></thead>
      <tbody>${found.workers.map(
          (one) => html`<tr class=${one.up && !one.trouble ? "" : "odd"}><th scope="row">${one.number}</th><td>${one.pid ?? "–"}</td><td class="text">${one.run ?? "–"}</td>
        <td class="text">${one.up ? "up" : "down"}${one.on_duty ? ", on duty" : ""}${one.trouble ? `: ${one.trouble}` : ""}</td></tr>`,
      )}</tbody></table></div></section>`;
}

/** The configuration by section; read anew when the policies in force change. */
function Configuration({ inForce }) {
    const [text, setText] = useState(null);
    const [error, setError] = useState(null);
    useEffect(() => {
        let ended = false;
        ask("admin/config")
            .then((answer) => answer.text())
            .then(
                (found) => !ended && (setText(found), setError(null)),
                (problem) => !ended && setError(problem),
            );
        return () => (ended = true);
    }, [inForce]);
    const sections = text === null ? [] : text.split(/^(?=\S)/m).filter((part) => /^\w+:/.test(part));
    return html`<section class="panel"><h2>Configuration in force</h2>
      <p class="faint">That of the start with every default; policies, experiment and admission as they are now. <code>GET /admin/config</code> has it as one file.</p>
      ${error ? html`<p role="alert" class="error">${error.message}</p>` : text === null ? html`<p class="faint">Reading …</p>` : ""}
      ${sections.map((part) => html`<${Section} key=${part.slice(0, part.indexOf(":"))} text=${part.trimEnd()} />`)}</section>`;
}

function Section({ text }) {
    const name = text.slice(0, text.indexOf(":"));
    if (!text.includes("\n")) return html`<pre class="yaml">${text}</pre>`;
    const lines = text.split("\n").length - 1;
    return html`<details><summary>${name} <span class="faint">${plural(lines, "line")}</span></summary><pre class="yaml">${text}</pre></details>`;
}
