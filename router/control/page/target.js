// One target: its state in words, its history since the page was opened, its last requests, and its learned speed
// against what was measured.

import { ask, read } from "./admin.js";
import { confirmAction } from "./actions.js";
import { Chart } from "./charts.js";
import { flowByTarget } from "./flow_sums.js";
import { count, duration, memoryText, momentOf, plural, timeOf, tokens } from "./format.js";
import { html, useEffect, useRef, useState } from "./lib.js";

const REFRESH_MS = 5000;
const ROWS = 25;

export function TargetDetail({ id, store, troubles }) {
    const [detail, setDetail] = useState(null);
    const [error, setError] = useState(null);
    const heading = useRef(null);
    useEffect(() => {
        let ended = false;
        const load = () =>
            read(`admin/live/target?id=${encodeURIComponent(id)}`).then(
                (found) => !ended && (setDetail(found), setError(null)),
                (problem) => !ended && setError(problem),
            );
        load();
        const timer = setInterval(load, REFRESH_MS);
        heading.current?.focus();
        return () => {
            ended = true;
            clearInterval(timer);
        };
    }, [id]);
    const cell = store.targets.get(id);
    const kept = store.history.get(id);
    return html`<aside class="detail" aria-labelledby="target-name">
    <header><h2 id="target-name" tabindex="-1" ref=${heading}>${id}</h2><a class="close" href="#fleet" aria-label="Close ${id}">✕</a></header>
    ${troubles.map((t) => html`<p class="trouble ${t.level}">${t.text}</p>`)}
    <${Actions} store=${store} cell=${cell} />
    <${Facts} id=${id} cell=${cell} detail=${detail} flow=${flowByTarget(store.flowTargets).get(id)} />
    ${error ? html`<p class="error">${error.message}</p>` : ""}
    ${
        kept && kept.t.length > 1
            ? html`
      <${Chart} title="Requests, since this page was opened" t=${kept.t} height=${120} format=${count} marks=${marksOf(store, cell)}
        series=${[
            { label: "this router's", color: "--router", values: kept.requests },
            { label: "waiting in the engine", color: "--engine", values: kept.waiting },
        ]} />
      <${Chart} title="KV memory in tokens, since this page was opened" t=${kept.t} height=${120} format=${tokens} marks=${marksOf(store, cell)}
        series=${[
            { label: "live", color: "--live", values: kept.live },
            { label: "cached, live included", color: "--cached-line", values: kept.held },
        ]} />`
            : ""
    }
    ${detail ? html`<${SpeedChart} detail=${detail} id=${id} /><${Requests} requests=${detail.requests} />` : ""}
  </aside>`;
}

const marksOf = (store, cell) => store.marks.filter((mark) => !mark.instance || mark.instance === cell.instance);

function Actions({ store, cell }) {
    if (!store.may) return "";
    const drained = cell.drained;
    const [verb, effect] = drained
        ? ["undrain", "It gets requests again."]
        : ["drain", "It finishes the requests that it has and gets no new ones."];
    const start = () =>
        confirmAction({
            title: `${drained ? "Undrain" : "Drain"} ${cell.instance}`,
            plan: async () => [
                effect,
                `It has ${count(cell.requests)} of this router's requests in flight${cell.ranks > 1 ? " at this rank" : ""}.`,
                `${[...new Set([...store.targets.values()].filter((c) => c.state === "ready" && c.instance !== cell.instance).map((c) => c.instance))].length} other instances are ready.`,
            ],
            act: () => ask(`admin/instances/${encodeURIComponent(cell.instance)}/${verb}`, { method: "POST" }),
        });
    return html`<p class="buttons"><button onClick=${start}>${drained ? "Undrain" : "Drain"} …</button></p>`;
}

function Facts({ id, cell, detail, flow }) {
    const target = detail?.instance.targets?.find((t) => t.rank === cell.rank);
    const stream = target?.stream;
    const facts = [
        ["state", cell.state],
        ["address", cell.url],
        ["model", cell.model],
        ["role", cell.role === "both" ? null : `${cell.role}, by ${cell.transfer ?? "no transfer"}`],
        ["revision", cell.revision],
        [
            "queue",
            cell.requests === undefined
                ? undefined
                : `${duration(cell.queued_ms)} of prefill in ${count(cell.prefilling)} requests`,
        ],
        ["streams", cell.requests === undefined ? undefined : count(cell.requests - cell.prefilling)],
        [
            "engine's own",
            cell.polled
                ? `${count(cell.running)} running, ${count(cell.waiting)} waiting${cell.elsewhere ? `, ${cell.elsewhere} of other clients` : ""}`
                : "not polled yet",
        ],
        ["memory", memoryText(cell).replace("KV memory", "KV")],
        [
            "hits promised → delivered",
            flow?.compared || flow?.predicted
                ? `${tokens(flow.predicted)} → ${tokens(flow.compared)} tokens in 5 min`
                : undefined,
        ],
        [
            "requests",
            flow
                ? html`${count(flow.placed)} in 5 min, <a href="#request/?show=failed&target=${encodeURIComponent(id)}" class=${flow.failed ? "bad" : ""}>${plural(flow.failed, "error")}</a>`
                : "none in 5 min",
        ],
        [
            "promises so far",
            cell.kept === undefined
                ? undefined
                : `${count(cell.kept)} kept, ${count(cell.broken)} broken, ${count(cell.missed)} hits not foreseen`,
        ],
        [
            "event stream",
            stream
                ? `${stream.state}, ${count(stream.events)} events, ${count(stream.gaps)} gaps, ${count(stream.restarts)} restarts`
                : cell.stream === null
                  ? "none"
                  : undefined,
        ],
        ["blocks of unknown prompts", cell.joined_late ? count(cell.unplaced) : null],
        ["events late by", cell.lag_ms === null ? undefined : duration(cell.lag_ms)],
        ["breaker", cell.breaker],
        ["tokenizer", tokenizer(detail)],
        ...(cell.silent_faults ?? []).map((fault) => [fault.check, `${fault.what}: ${fault.why}; ${fault.change}`]),
    ];
    return html`<dl class="facts">${facts.filter(([, v]) => v !== null).map(([name, value]) => html`<dt>${name}</dt><dd>${value ?? "–"}</dd>`)}</dl>`;
}

function tokenizer(detail) {
    if (!detail) return undefined;
    const report = detail.instance.tokenizer;
    return report ? (report.trouble ?? `${count(report.proofs)} proofs passed`) : "none";
}

/** The curve with the context that requests had at the median; the points have contexts of their own. */
function SpeedChart({ detail, id }) {
    const rank = Number(id.slice(id.lastIndexOf("/") + 1));
    const speed = detail.instance.targets?.find((t) => t.rank === rank)?.speed;
    const measured = detail.requests
        .filter((r) => r.ttft_ms !== null && r.end === "ok" && r.prompt_tokens !== null && r.cached_tokens !== null)
        .map((r) => ({ ...r, fresh: Math.max(0, r.prompt_tokens - r.cached_tokens) }))
        .sort((a, b) => a.fresh - b.fresh);
    if (!speed) return "";
    if (measured.length < 2)
        return html`<p class="faint">Speed: no streamed answers yet to compare the learned curve with.</p>`;
    const contexts = measured.map((r) => r.cached_tokens).sort((a, b) => a - b);
    const context = contexts[Math.floor(contexts.length / 2)];
    const curve = (n) =>
        speed.base_ms + (speed.us_per_token * n + (speed.ns_per_token_context * n * (context + n / 2)) / 1000) / 1000;
    const x = measured.map((r) => r.fresh);
    const series = [
        { label: "learned", color: "--ink", values: x.map(curve) },
        {
            label: "measured, alone",
            color: "--c3",
            points: true,
            values: measured.map((r) => (r.alone ? r.ttft_ms : null)),
        },
        {
            label: "measured, queued",
            color: "--c4",
            points: true,
            values: measured.map((r) => (r.alone ? null : r.ttft_ms)),
        },
    ];
    const learned = speed.samples
        ? `learned from ${count(speed.samples)} requests, ${duration((speed.age_s ?? 0) * 1000)} ago`
        : "not learned yet: the configured prior";
    return html`<${Chart} title=${`Time to first token by tokens computed; ${learned}; curve after ${tokens(context)} cached tokens`} t=${x} series=${series}
    format=${duration} x=${{ time: false, label: "computed", format: tokens }} height=${150} />`;
}

function Requests({ requests }) {
    if (!requests.length) return html`<p class="faint">No recent request went here.</p>`;
    return html`<h3>Last requests</h3><div class="wide" tabindex="0" role="region" aria-label="Last requests"><table>
    <thead><tr><th scope="col">at</th><th scope="col">request</th><th scope="col">decided by</th><th scope="col">prompt</th><th scope="col">promised</th><th scope="col">cached</th><th scope="col">TTFT</th><th scope="col">end</th></tr></thead>
    <tbody>${requests.slice(0, ROWS).map(
        (r) => html`<tr class=${r.end === "ok" || r.end === "running" ? "" : "odd"}>
      <td title=${momentOf(r.at_s)}>${timeOf(r.at_s)}</td><td class="text"><a href="#request/${encodeURIComponent(r.id)}">${r.id}</a></td><td class="text">${r.lane}</td>
      <td>${tokens(r.prompt_tokens)}</td><td>${tokens(r.predicted_tokens)}</td><td>${tokens(r.cached_tokens)}</td><td>${duration(r.ttft_ms)}</td><td class="text">${r.end}</td></tr>`,
    )}</tbody>
  </table></div>`;
}
