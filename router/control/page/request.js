// Requests: the newest, the failed and the slowest, by id, session, client, target, status or time; and of one its time line,
// the candidates' costs as stacked bars, promise against delivery, and what other policies would have chosen.

import { read } from "./admin.js";
import { amount, count, duration, momentOf, share, timeOf, tokens } from "./format.js";
import { html, useEffect, useState } from "./lib.js";
import { Name } from "./name.js";
import { categoryColor, useNarrow } from "./svg.js";

const LISTED = 50;
const FIELDS = [
    ["id", "Id begins with"],
    ["session", "Session"],
    ["client", "Client"],
    ["target", "Target"],
    ["status", "Status"],
];

/** What may be listed, and by which parameters of the admin API. */
const SHOW = {
    newest: { label: "newest", query: {} },
    failed: { label: "failed", query: { error: "any" } },
    slowest_first_token: { label: "slowest to the first token", query: { slowest: "ttft_ms" } },
    slowest: { label: "slowest", query: { slowest: "duration_ms" } },
};
const PERIODS = [
    ["", "all that are kept"],
    ["300", "5 min"],
    ["900", "15 min"],
    ["3600", "1 h"],
];
const CLIENTS_OWN = ["client_gone", "engine_4xx"]; // reasons, as in router/telemetry/failure.py

/** Requests by what is wanted of them, or one of them. The address has what is wanted, `?show=failed`, or a record's id. */
export function Requests({ store, argument }) {
    const id = argument.startsWith("?") ? "" : argument;
    return html`<${Search} store=${store} open=${id} argument=${argument} />${id ? html`<${Detail} key=${id} id=${id} ends=${store.ends} />` : ""}`;
}

const wantedOf = (argument) => Object.fromEntries(new URLSearchParams(argument.startsWith("?") ? argument : ""));

function Search({ store, open, argument }) {
    const [wanted, setWanted] = useState(wantedOf(argument));
    const [asked, setAsked] = useState(wanted);
    const [found, setFound] = useState(null);
    const [error, setError] = useState(null);
    const narrow = useNarrow();
    useEffect(() => {
        if (!argument && !narrow) document.getElementById("find").focus(); // a phone would show its keyboard
    }, []);
    useEffect(() => {
        const next = wantedOf(argument);
        if (!argument.startsWith("?") || JSON.stringify(next) === JSON.stringify(asked)) return;
        setWanted(next);
        setAsked(next);
    }, [argument]);
    useEffect(() => {
        let ended = false;
        read(`admin/records?${queryOf(asked, store.now)}`).then(
            (answer) => !ended && (setFound(answer.records), setError(null)),
            (problem) => !ended && setError(problem),
        );
        return () => (ended = true);
    }, [asked]);
    const set = (name) => (event) => setWanted({ ...wanted, [name]: event.target.value.trim() });
    const field = (name, label, kind, id) =>
        html`<label>${label} <input id=${id} type=${kind} step=${kind === "search" ? null : "1"} value=${wanted[name] ?? ""} onInput=${set(name)} /></label>`;
    const find = (event) => {
        event.preventDefault();
        const next = Object.fromEntries(Object.entries(wanted).filter(([, text]) => text));
        history.replaceState(null, "", `#request/?${new URLSearchParams(next)}`);
        setAsked(next);
    };
    const shown = SHOW[asked.show] ?? SHOW.newest;
    return html`<form class="tools ${open ? "beside" : ""}" role="search" onSubmit=${find}>
      <label>Show <select value=${wanted.show ?? "newest"} onChange=${set("show")}>${Object.entries(SHOW).map(([name, { label }]) => html`<option value=${name}>${label}</option>`)}</select></label>
      <label>of the last <select value=${wanted.last_s ?? ""} onChange=${set("last_s")}>${PERIODS.map(([s, label]) => html`<option value=${s}>${label}</option>`)}</select></label>
      ${FIELDS.map(([name, label]) => field(name, label, "search", name === "id" ? "find" : null))}
      ${field("since", "From", "datetime-local")}${field("until", "To", "datetime-local")}
      <button class="primary">Find</button>
    </form>
    ${error ? html`<p role="alert" class="error">${error.message}</p>` : ""}
    ${
        found === null
            ? ""
            : html`<details class="found" open=${!open}><summary>${found.length ? `${count(found.length)} ${shown.label} that match` : "No record matches; the recent records are searched"}</summary>
      <div class="wide" tabindex="0" role="region" aria-label="Records found"><table>
        <thead><tr>${["at", "request", "outcome"].map((name) => html`<th scope="col" class="text">${name}</th>`)}<th scope="col">TTFT</th><th scope="col">took</th>${["target", "decided by", "client"].map((name) => html`<th scope="col" class="text">${name}</th>`)}<th scope="col">prompt</th><th scope="col">cached</th></tr></thead>
        <tbody>${found.map(
            (
                r,
            ) => html`<tr class=${r.reason && !CLIENTS_OWN.includes(r.reason) ? "odd" : ""}><td title=${momentOf(r.at_wall_s)}>${timeOf(r.at_wall_s)}</td>
          <td class="text"><a href="#request/${encodeURIComponent(r.id)}" aria-current=${r.id === open ? "true" : null}>${r.id}</a></td><td class="text">${outcome(r)}</td>
          <td>${r.stream ? duration(r.ttft_ms) : "–"}</td><td>${duration(r.duration_ms)}</td>
          <td class="text">${r.target ? html`<${Name} text=${r.target} ends=${store.ends} />` : "–"}</td><td class="text">${r.arm ?? r.policy ?? "–"}</td>
          <td class="text">${r.client ?? r.sender ?? "–"}</td><td>${tokens(r.prompt_tokens ?? r.prompt_tokens_counted)}</td><td>${tokens(r.cached_tokens)}</td></tr>`,
        )}</tbody></table></div></details>`
    }`;
}

/** The parameters of `/admin/records` for what is wanted at the time `now`. */
function queryOf({ show, last_s, ...fields }, now) {
    const query = new URLSearchParams({ limit: LISTED, ...(SHOW[show] ?? SHOW.newest).query });
    if (last_s) query.set("since", now - last_s);
    for (const [name, text] of Object.entries(fields))
        if (text) query.set(name, name === "since" || name === "until" ? new Date(text).getTime() / 1000 : text);
    return query;
}

const outcome = (r) =>
    r.done ? [r.status ?? "no status", r.reason].filter((part) => part !== null).join(" ") : "running";

function Detail({ id, ends }) {
    const [record, setRecord] = useState(null);
    const [error, setError] = useState(null);
    useEffect(() => {
        let ended = false;
        let timer = 0;
        const load = () =>
            read(`admin/records/${encodeURIComponent(id)}`).then(
                (found) => {
                    if (ended) return;
                    setRecord(found);
                    if (!found.done) timer = setTimeout(load, 1000);
                },
                (problem) => !ended && setError(problem),
            );
        load();
        return () => {
            ended = true;
            clearTimeout(timer);
        };
    }, [id]);
    if (error) return html`<p role="alert" class="error">${error.message}</p>`;
    if (!record) return html`<p class="faint">Reading ${id} …</p>`;
    const facts = [
        ["at", momentOf(record.at_wall_s)],
        ["endpoint", record.endpoint],
        ["model", record.model],
        ["client", record.client ?? record.sender],
        ["session", record.session],
        ["policy", record.arm ? `${record.policy}, arm ${record.arm}` : record.policy],
        ["status", record.status],
        ["error", record.error],
        ["trace", record.trace_id],
        ["token ids", record.tokens_from],
        ["repeats the turn before", record.prefix_end?.why],
        ["output tokens", record.output_tokens],
    ];
    const nth = (i) => (record.attempts.length > 1 ? `, attempt ${i + 1}` : "");
    return html`<article class="record"><h2>${record.id}</h2><p class="lead">${record.why ?? record.error ?? "No target was chosen."}</p>
    <dl class="facts columns">${facts.filter(([, v]) => v !== null && v !== undefined).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <${Delivery} record=${record} />
    <h3>Timeline</h3><${Waterfall} record=${record} />
    ${record.attempts.map(
        (
            attempt,
            i,
        ) => html`<section><h3>${record.attempts.length > 1 ? `Attempt ${i + 1} of ${record.attempts.length}: ` : "The choice: "}${attempt.target} (${attempt.end})</h3>
      ${record.attempts.length > 1 ? html`<p>${attempt.why}</p>` : ""}<${Costs} choice=${attempt} ends=${ends} of=${`candidates${nth(i)}`} />
      ${attempt.prefill ? html`<h3>Prefilled by ${attempt.prefill.target} (${attempt.prefill.end})</h3><${Costs} choice=${attempt.prefill} ends=${ends} of=${`prefill candidates${nth(i)}`} />` : ""}</section>`,
    )}
    <${Others} record=${record} />
  </article>`;
}

function Delivery({ record }) {
    const last = record.attempts.at(-1);
    const predicted =
        record.promise?.overlap_tokens ?? last?.prefill?.predicted_tokens ?? last?.predicted_tokens ?? null;
    const prompt = record.prompt_tokens ?? record.prompt_tokens_counted;
    const rows = [["prompt tokens cached", predicted, record.cached_tokens, prompt, tokens]];
    return html`<h3>Promise and delivery</h3><dl class="figures-line">
    ${rows.map(([name, promised, delivered, whole, text]) => html`<div><dt>${name}</dt><dd>${text(promised)} → ${text(delivered)}</dd><dd class="faint">of ${text(whole)}${whole && delivered !== null ? ` (${share(delivered / whole)})` : ""}</dd></div>`)}
    <div><dt>first token</dt><dd>${record.promise ? `${duration(record.promise.predicted_ttft_ms)} → ` : ""}${duration(record.promise ? record.promise.measured_ttft_ms : record.ttft_ms)}</dd><dd class="faint">${record.stream ? "" : "not streamed"}</dd></div>
    <div><dt>whole answer</dt><dd>${duration(record.duration_ms)}</dd></div></dl>`;
}

const SIDES = {
    client: "the client sends",
    router: "the router computes",
    wait: "the request waits",
    engine: "the engine works",
};

function Waterfall({ record }) {
    const stages = record.timeline.filter((s) => s.start_ms !== null);
    const end = Math.max(record.duration_ms ?? 0, ...stages.map((s) => s.start_ms + (s.duration_ms ?? 0))) || 1;
    // The router's stages take microseconds and the answer seconds: a root scale shows both.
    const x = (ms) => 100 * Math.sqrt(Math.max(0, ms) / end);
    const ticks = [0, 0.01, 0.1, 0.25, 0.5, 1].map((part) => part * end);
    const several = record.attempts.length > 1;
    return html`<div class="wide" tabindex="0" role="region" aria-label="Timeline"><table class="waterfall"><thead><tr><th scope="col">stage</th><th scope="col">from</th><th scope="col">took</th>
      <th scope="col" class="axis">${ticks.map((ms) => html`<span style=${ms === end ? "right: 0" : `left: ${x(ms)}%`} class=${ms === end ? "last" : ""}>${duration(ms)}</span>`)}<span class="hidden">drawn on a root scale</span></th></tr></thead>
    <tbody>${stages.map(
        (
            s,
        ) => html`<tr><th scope="row">${s.name.replaceAll("_", " ")}${several && s.attempt ? ` (${s.attempt})` : ""}</th><td>${duration(s.start_ms)}</td><td>${duration(s.duration_ms)}</td>
      <td class="lane"><i class=${s.side} style=${`left: ${x(s.start_ms)}%; width: ${Math.max(0.25, x(s.start_ms + (s.duration_ms ?? end)) - x(s.start_ms))}%`}></i></td></tr>`,
    )}</tbody></table></div>
    <p class="legend inline" aria-hidden="true">${Object.entries(SIDES).map(([side, meaning]) => html`<span><i class=${side}></i>${meaning} </span>`)}<span>root scale</span></p>`;
}

/** The parts of a candidate's cost, weighted: of each term its own parts, or the term where it names none. */
function partsOf(candidate) {
    const parts = [];
    for (const [name, term] of Object.entries(candidate.terms)) {
        const own = Object.entries(term.parts ?? {});
        if (own.length) for (const [part, value] of own) parts.push([part, value * term.weight]);
        else parts.push([name, term.weighted]);
    }
    return parts;
}

function Costs({ choice, ends, of }) {
    const [all, setAll] = useState(false);
    const candidates = [...(choice.candidates ?? [])].sort((a, b) => a.cost - b.cost);
    if (!candidates.length) return "";
    const shown = all ? candidates : candidates.slice(0, 12);
    const parts = new Map(shown.map((c) => [c, partsOf(c)]));
    const kinds = [
        ...new Set(
            [...parts.values()]
                .flat()
                .filter(([, v]) => v !== 0)
                .map(([name]) => name),
        ),
    ];
    const low = Math.min(0, ...shown.map((c) => parts.get(c).reduce((sum, [, v]) => sum + Math.min(0, v), 0)));
    const high = Math.max(
        ...shown.map((c) => parts.get(c).reduce((sum, [, v]) => sum + Math.max(0, v), 0)),
        low + 1e-9,
    );
    const width = (value) => (100 * Math.abs(value)) / (high - low);
    const unit = Object.values(candidates[0].terms)[0]?.unit ?? "";
    const value = (v) => (unit.toLowerCase() === "ms" ? duration(v) : amount(v));
    return html`<p class="legend inline">${kinds.map((name, i) => html`<span><i style=${`background: var(${categoryColor(i)})`}></i>${name.replaceAll("_", " ")} </span>`)}</p>
    <div class="wide" tabindex="0" role="region" aria-label=${`Costs of the ${of}`}><table class="costs"><thead><tr><th scope="col">candidate</th><th scope="col">cost</th><th scope="col">overlap</th><th scope="col">queue</th><th scope="col" class="text">parts of the cost</th></tr></thead>
    <tbody>${shown.map((c) => {
        let right = -low * (100 / (high - low));
        let left = right;
        return html`<tr class=${c.target === choice.target ? "chosen" : ""}><th scope="row"><${Name} text=${c.target} ends=${ends} />${c.target === choice.target ? " ✓" : ""}<span class="hidden">${c.target === choice.target ? "chosen" : ""}</span></th><td>${value(c.cost)}</td>
        <td>${c.overlap ? tokens(c.overlap.expected_tokens ?? c.overlap.gpu_tokens) : "–"}</td><td>${duration(c.load?.queued_ms)}</td>
        <td class="lane">${parts
            .get(c)
            .filter(([, v]) => v !== 0)
            .map(([name, v]) => {
                const w = width(v);
                const at = v > 0 ? right : left - w;
                if (v > 0) right += w;
                else left -= w;
                return html`<i title="${name.replaceAll("_", " ")}: ${value(v)}" style=${`left: ${at}%; width: ${w}%; background: var(${categoryColor(kinds.indexOf(name))})`}></i>`;
            })}<span class="hidden">${parts
            .get(c)
            .map(([name, v]) => `${name.replaceAll("_", " ")} ${value(v)}`)
            .join(", ")}</span></td></tr>`;
    })}</tbody></table></div>
    ${candidates.length > 12 ? html`<button class="link" onClick=${() => setAll(!all)}>${all ? "the 12 cheapest" : `all ${count(candidates.length)} candidates`}</button>` : ""}
    ${choice.left_out ? html`<p class="faint">${choice.left_out}</p>` : ""}`;
}

function Others({ record }) {
    const shadows = record.shadows.map((s) => ({
        policy: `${s.policy} (shadow)`,
        target: s.target,
        difference: s.difference,
    }));
    const rows = [...shadows, ...record.others];
    if (!rows.length) return "";
    const first = record.attempts[0]?.target;
    return html`<h3>Other policies' choices</h3><div class="wide" tabindex="0" role="region" aria-label="Other policies' choices"><table>
    <thead><tr><th scope="col">policy</th><th scope="col" class="text">would have chosen</th><th scope="col">first token, predicted difference</th><th scope="col">overlap, difference</th></tr></thead>
    <tbody>${rows.map(
        (
            o,
        ) => html`<tr><th scope="row">${o.policy}</th><td class="text wrap">${o.target === null || o.target === undefined ? (o.fault ?? "–") : o.target === first ? "the same" : o.target}${(o.notes ?? []).map((note) => html` <small>${note}</small>`)}</td>
      <td>${o.target === first ? "" : signed(o.difference?.ttft_ms, duration)}</td><td>${o.target === first ? "" : signed(o.difference?.overlap_tokens, tokens)}</td></tr>`,
    )}</tbody></table></div>`;
}

function signed(value, text) {
    if (value === null || value === undefined) return "–";
    return value > 0 ? `+${text(value)}` : value < 0 ? `−${text(-value)}` : "0";
}
