// The cache: the prefixes that recent prompts share as an icicle, who holds them and how often they were found cached,
// what is held twice, and the pool's share. There is no text in it: prefixes are named by digests.

import { usePolled } from "./admin.js";
import { count, duration, names, share, tokens } from "./format.js";
import { lastSeconds } from "./flow_sums.js";
import { html, useState } from "./lib.js";
import { Bar, useNarrow } from "./svg.js";

const REFRESH_MS = 10000;
const ROW = 22;
const LABELLED = 46; // narrower boxes have no label
const LISTED = 20;

export function Cache({ store }) {
    const { found, error } = usePolled("admin/cache/tree", REFRESH_MS);
    const [chosen, setChosen] = useState(null);
    if (error) return html`<p role="alert" class="error">${error.message}</p>`;
    if (!found) return html`<p class="faint">Reading the cache …</p>`;
    const prefixes = branches(found.prefixes);
    const selected = prefixes.get(chosen);
    return html`<${Totals} copies=${found.copies} store=${store} />
    <section class="panel"><h2>Shared prefixes</h2>
      <p class="faint">The prompts of the last ${duration(found.window_s * 1000)} from the first token downwards. Width: the number of requests that begin with these tokens. Colour: the darker, the more of these requests found the whole prefix cached. Lengths are known to the power of two below.</p>
      ${
          prefixes.size
              ? html`<${Icicle} prefixes=${prefixes} chosen=${chosen} choose=${setChosen} /><${Chosen} prefix=${selected} /><${Longest} prefixes=${prefixes} chosen=${chosen} choose=${setChosen} />`
              : html`<p>No two recent prompts that were tokenized here share a block.</p>`
      }</section>`;
}

/** The prefixes at which requests part or end, by id, each with its children: others say the same as the longer one. */
function branches(list) {
    const all = new Map(list.map((p) => [p.id, { ...p, children: [] }]));
    const goesOn = new Set(list.filter((p) => all.get(p.parent)?.requests === p.requests).map((p) => p.parent));
    const kept = new Map([...all].filter(([id]) => !goesOn.has(id)));
    for (const p of kept.values()) {
        let above = all.get(p.parent);
        while (above && goesOn.has(above.id)) above = all.get(above.parent);
        p.above = above ?? null;
        above?.children.push(p);
    }
    return kept;
}

function Totals({ copies, store }) {
    const sum = lastSeconds(store, 300);
    const held = [...store.targets.values()];
    const live = held.reduce((total, cell) => total + (cell.live ?? 0), 0);
    const cached = held.reduce(
        (total, cell) =>
            total + (cell.held === null || cell.held === undefined ? 0 : Math.max(0, cell.held - (cell.live ?? 0))),
        0,
    );
    const capacity = copies.capacity_tokens;
    const twice = copies.duplicate_tokens;
    return html`<section class="panel"><h2>All targets</h2><dl class="figures-line">
    <div><dt>KV memory</dt><dd>${tokens(capacity)}</dd><dd class="faint">tokens: ${tokens(live)} live, ${tokens(cached)} cached</dd></div>
    <div><dt>held by several targets</dt><dd>${tokens(twice)}</dd><dd class="faint">tokens${capacity && twice !== null ? `, ${share(twice / capacity)} of the memory and ${share(twice / (copies.held_tokens || 1))} of what is held` : ""}</dd></div>
    <div><dt>cached tokens delivered</dt><dd>${share(sum?.prompt ? sum.delivered / sum.prompt : null)}</dd><dd class="faint">of prompt tokens in 5 min</dd></div>
    <div><dt>from the pool</dt><dd>${store.router.pool ? share(sum?.prompt ? sum.pool / sum.prompt : null) : "no pool"}</dd><dd class="faint">${store.router.pool ? "of prompt tokens, beyond the target's own hits" : ""}</dd></div></dl>
    <div class="wide-bar"><${Bar} whole=${capacity} title="KV memory of all targets: ${tokens(live)} live, ${tokens(cached)} cached, of ${tokens(capacity)}" parts=${[
        { kind: "live", value: live },
        { kind: "cached", value: cached },
    ]} /></div></section>`;
}

const hitShare = (p) => (p.answers ? p.hits / p.answers : null);

function Icicle({ prefixes, chosen, choose }) {
    const whole = useNarrow() ? 330 : 1000;
    const roots = [...prefixes.values()].filter((p) => p.above === null).sort((a, b) => b.requests - a.requests);
    const total = roots.reduce((sum, p) => sum + p.requests, 0);
    const boxes = [];
    const lay = (p, x, row) => {
        const width = (whole * p.requests) / total;
        boxes.push({ p, x, width, row });
        let at = x;
        for (const child of [...p.children].sort((a, b) => b.requests - a.requests)) at += lay(child, at, row + 1);
        return width;
    };
    roots.reduce((x, root) => x + lay(root, x, 0), 0);
    const rows = Math.max(...boxes.map((b) => b.row)) + 1;
    const longest = Math.max(...[...prefixes.values()].map((p) => p.tokens ?? p.blocks));
    const label = `${count(prefixes.size)} shared prefixes of ${count(total)} requests; the longest has ${tokens(longest)} tokens. The table below lists them.`;
    return html`<div class="wide"><svg class="icicle" viewBox="0 0 ${whole} ${rows * ROW}" role="img" aria-label=${label}>
    ${boxes
        .filter((b) => b.width >= 0.7)
        .map(({ p, x, width, row }) => {
            const hit = hitShare(p);
            return html`<g class=${p.id === chosen ? "chosen" : ""} onClick=${() => choose(p.id === chosen ? null : p.id)}><title>${describe(p)}</title>
        <rect x=${x + 0.4} y=${row * ROW + 0.5} width=${Math.max(0.4, width - 0.8)} height=${ROW - 1} style=${`fill-opacity: ${hit === null ? 0.04 : 0.1 + 0.45 * hit}`} class=${p.holders ? "" : "nowhere"} />
        ${width > LABELLED ? html`<text x=${x + 5} y=${row * ROW + 15}>${tokens(p.tokens ?? p.blocks)}${width > 2.2 * LABELLED ? html`<tspan class="faint"> × ${count(p.requests)}, at ${count(p.holders)}</tspan>` : ""}</text>` : ""}</g>`;
        })}</svg></div>
    <p class="legend inline" aria-hidden="true"><i class="cold"></i>found cached by few <i class="hot"></i>by all <i class="gone"></i>no target holds it now</p>`;
}

const describe = (p) =>
    `${tokens(p.tokens)} tokens, ${count(p.requests)} requests, ${share(hitShare(p))} found them cached, held by ${count(p.holders)}`;

function Chosen({ prefix }) {
    if (!prefix) return html`<p class="faint">A click on a box shows who holds it.</p>`;
    return html`<p class="chosen-prefix" role="status"><strong>${tokens(prefix.tokens)} tokens</strong> of ${prefix.model}, ${prefix.id}: ${count(prefix.requests)} requests, ${share(hitShare(prefix))} found all of it cached. Held by ${prefix.holders ? html`${count(prefix.holders)}: ${names(prefix.targets, 20)}` : "no target"}${prefix.holders_slower ? `, in a slower tier only by ${count(prefix.holders_slower)} more` : ""}.</p>`;
}

/** Prefixes that end where requests part, by how many tokens they spare: length times requests. */
function Longest({ prefixes, chosen, choose }) {
    const rows = [...prefixes.values()].sort((a, b) => b.tokens * b.requests - a.tokens * a.requests).slice(0, LISTED);
    return html`<div class="wide" tabindex="0" role="region" aria-label="Shared prefixes"><table><thead><tr>${["tokens", "requests", "found cached", "held by", "in further copies", "model"].map((name) => html`<th scope="col" class=${name === "model" ? "text" : ""}>${name}</th>`)}<th scope="col"><span class="hidden">choose</span></th></tr></thead>
    <tbody>${rows.map(
        (
            p,
        ) => html`<tr class=${p.id === chosen ? "chosen" : ""}><td>${tokens(p.tokens)}</td><td>${count(p.requests)}</td><td>${share(hitShare(p))}</td><td>${count(p.holders)}</td><td>${tokens(p.tokens === null ? null : Math.max(0, p.holders - 1) * p.tokens)}</td><td class="text">${p.model}</td>
      <td><button class="link" aria-label="Who holds ${p.id}?" onClick=${() => choose(p.id === chosen ? null : p.id)}>who?</button></td></tr>`,
    )}</tbody></table></div>`;
}
