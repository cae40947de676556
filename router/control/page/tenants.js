// Tenants: what each used on the days that are chosen, what was refused and why, and how much of its limits is used now.

import { ask, usePolled } from "./admin.js";
import { amount, count, duration, names, plural, ratio, share, tokens } from "./format.js";
import { html, useState } from "./lib.js";

const LIMITS_MS = 2000;
const USAGE_MS = 5000;
const LISTED = 200;
const LIMITS = {
    concurrent: "at a time",
    requests_per_minute: "requests / min",
    tokens_per_minute: "tokens / min",
    budget_per_day: "budget of today",
};

const today = () => new Date().toISOString().slice(0, 10); // UTC, as days are counted

export function Tenants() {
    const [days, setDays] = useState({ from: null, to: null }); // null: today, also after midnight
    const query = `from=${days.from ?? today()}&to=${days.to ?? today()}`;
    const used = usePolled(`admin/usage?${query}`, USAGE_MS);
    const now = usePolled(`admin/tenants?limit=${LISTED}`, LIMITS_MS);
    return html`<${Days} days=${days} choose=${setDays} query=${query} />
    <section class="panel"><h2>Usage</h2>${shown(used, () => html`<${Used} rows=${sumByTenant(used.found.usage)} />`)}</section>
    <section class="panel"><h2>Limits now</h2>${shown(now, () => html`<${Limits} tenants=${now.found.tenants.filter((one) => Object.keys(one.limits).length)} />`)}</section>`;
}

function shown({ found, error }, view) {
    if (error) return html`<p role="alert" class="error">${error.message}</p>`;
    return found ? view() : html`<p class="faint">Reading …</p>`;
}

function Days({ days, choose, query }) {
    const [error, setError] = useState(null);
    const save = () => download(`admin/usage?format=csv&${query}`, "usage.csv").then(() => setError(null), setError);
    const day = (name, text) =>
        html`<label>${text} <input type="date" max=${today()} value=${days[name] ?? today()} onChange=${(e) => choose({ ...days, [name]: e.target.value && e.target.value !== today() ? e.target.value : null })} /></label>`;
    return html`<div class="tools">${day("from", "From")}${day("to", "to")}<span class="faint">days in UTC</span>
      <button onClick=${save}>Download CSV</button>${error ? html`<p role="alert" class="error">${error.message}</p>` : ""}</div>`;
}

/** Save a file of the admin API, which a link cannot: it sends no token. */
async function download(path, name) {
    const url = URL.createObjectURL(await (await ask(path)).blob());
    const link = Object.assign(document.createElement("a"), { href: url, download: name });
    link.click();
    URL.revokeObjectURL(url);
}

/** One row a tenant, of all its days and models; who had most computed comes first. */
function sumByTenant(rows) {
    const sums = new Map();
    for (const row of rows) {
        const sum = sums.get(row.tenant) ?? { requests: 0, computed: 0, cached: 0, output: 0, gpu_s: 0, refused: {} };
        sum.requests += row.requests;
        sum.computed += row.input_tokens;
        sum.cached += row.cached_tokens;
        sum.output += row.output_tokens;
        sum.gpu_s += row.gpu_s;
        for (const [reason, times] of Object.entries(row.refused))
            sum.refused[reason] = (sum.refused[reason] ?? 0) + times;
        sums.set(row.tenant, sum);
    }
    const work = ({ computed, output }) => computed + output;
    return [...sums].sort(([, a], [, b]) => work(b) - work(a));
}

function Used({ rows }) {
    if (!rows.length) return html`<p>No tenant sent a request on these days.</p>`;
    return html`<div class="wide" tabindex="0" role="region" aria-label="Usage of tenants"><table><thead><tr><th scope="col">tenant</th>${["requests", "prompt tokens", "of them cached", "and computed", "output tokens", "GPU time"].map((name) => html`<th scope="col">${name}</th>`)}<th scope="col" class="text">refused</th></tr></thead>
    <tbody>${rows.slice(0, LISTED).map(
        ([tenant, sum]) => html`<tr><th scope="row">${tenant}</th><td>${count(sum.requests)}</td><td>${tokens(sum.cached + sum.computed)}</td>
      <td>${tokens(sum.cached)}, ${share(ratio(sum.cached, sum.cached + sum.computed))}</td><td>${tokens(sum.computed)}</td><td>${tokens(sum.output)}</td><td>${duration(sum.gpu_s * 1000)}</td>
      <td class="text">${names(Object.entries(sum.refused).map(([reason, times]) => `${reason} ${count(times)}`), 9) || "–"}</td></tr>`,
    )}</tbody></table></div>
    ${rows.length > LISTED ? html`<p class="faint">And ${plural(rows.length - LISTED, "more tenant")}: the CSV has all.</p>` : ""}`;
}

function Limits({ tenants }) {
    if (!tenants.length) return html`<p>No tenant with limits uses anything now.</p>`;
    return html`<p class="faint">At most ${count(LISTED)} tenants, the nearest to a limit first. Reservations of requests in progress are included.</p>
    <div class="wide" tabindex="0" role="region" aria-label="Limits of tenants"><table><thead><tr><th scope="col">tenant</th>${Object.values(LIMITS).map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${tenants.map(
        ({ tenant, limits }) => html`<tr><th scope="row">${tenant}</th>${Object.entries(LIMITS).map(([name, text]) => html`<td><${Use} limit=${limits[name]} label="${text}, ${tenant}" /></td>`)}</tr>`,
    )}</tbody></table></div>`;
}

function Use({ limit, label }) {
    if (!limit) return html`<span class="faint">no limit</span>`;
    const { used, allowed } = limit;
    return html`${amount(used)} of ${amount(allowed)} <meter min="0" max=${allowed} low=${0.7 * allowed} high=${0.9 * allowed} optimum="0" value=${Math.min(used, allowed)} aria-label=${label}></meter>`;
}
