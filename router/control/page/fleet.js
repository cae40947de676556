// The fleet: a cell per target. A click opens the target.

import { flowByTarget } from "./flow_sums.js";
import { amount, count, duration, memoryText, names, plural, ratio, share } from "./format.js";
import { html, useMemo, useRef, useState } from "./lib.js";
import { Name, sharedEnds } from "./name.js";
import { Bar, useNarrow } from "./svg.js";
import { TargetDetail } from "./target.js";

const FLOW_S = 300; // of the sums by target
const MANY = 60; // more cells than this are drawn small
const SORTS = {
    name: { label: "name", of: (c) => c.id },
    trouble: { label: "trouble first", of: (c) => -worst(c) },
    queue: { label: "longest queue", of: (c) => -(c.queued_ms ?? -1) },
    errors: { label: "most errors", of: (c) => -(c.flow?.failed ?? 0) },
    memory: { label: "fullest memory", of: (c) => -(ratio(c.live, c.capacity) ?? -1) },
};
const SIGN = { ok: "●", warn: "▲", bad: "■", off: "○" };
const RANK = { ok: 0, off: 1, warn: 2, bad: 3 };

/** What is wrong with a target: [{level, text}], the worst first. */
export function troubles(cell) {
    const found = [];
    const add = (condition, level, text) => condition && found.push({ level, text });
    add(cell.state === "down", "bad", `down${cell.trouble ? `: ${cell.trouble}` : ""}`);
    add(cell.panic, "bad", "served all the same: no other engine can answer (panic)");
    add(cell.state === "joining", "warn", `joining${cell.trouble ? `: ${cell.trouble}` : ""}`);
    add(cell.state === "draining", "off", cell.drained ? "drained by an operator" : "draining: its source says so");
    add(cell.breaker === "open", "bad", "breaker open: requests failed");
    add(cell.stuck, "bad", `stuck: ${cell.stuck}`);
    add(cell.slowdown, "warn", `${cell.slowdown} times slower than usual`);
    add(cell.breaker === "half_open", "warn", "breaker half open: one request is tried");
    add(cell.silent, "bad", "its events stopped: it announces no new blocks");
    add(cell.trusted === false, "bad", "hits promised by its events were not delivered");
    add(cell.alarm, "bad", cell.alarm);
    add(cell.distrust, "warn", `not trusted: ${cell.distrust}`);
    add(cell.stream === "lost", "warn", "its events were lost");
    add(cell.stream === "replaying", "warn", "its events are replayed");
    add(cell.unplaced, "warn", `joined late: ${plural(cell.unplaced, "cached block")} of prompts that are not known yet`);
    add(cell.lag_ms > 2000, "warn", `events ${duration(cell.lag_ms)} late`);
    for (const fault of cell.silent_faults ?? []) add(fault.needed, "warn", fault.what);
    add(cell.pairable === false, "warn", "no decode engine can fetch from it yet");
    return found.sort((a, b) => RANK[b.level] - RANK[a.level]);
}

const level = (cell) => troubles(cell)[0]?.level ?? "ok";
const worst = (cell) => RANK[level(cell)];

export function Fleet({ store, argument }) {
    const [sort, setSort] = useState(useNarrow() ? "trouble" : "name"); // a phone shows few cells at a time
    const [filter, setFilter] = useState("");
    const grid = useRef(null);
    const flows = useMemo(() => flowByTarget(store.flowTargets), [store.flowTargets]);
    const all = [...store.targets].map(([id, cell]) => ({ id, flow: flows.get(id), ...cell }));
    const seconds = Math.min(FLOW_S, store.now - (store.flowSince ?? store.now));
    const wanted = filter.trim().toLowerCase();
    const text = (c) => [c.id, c.state, c.model, c.role, ...troubles(c).map((t) => t.text)].join(" ").toLowerCase();
    const cells = (wanted ? all.filter((c) => text(c).includes(wanted)) : all).sort(by(SORTS[sort].of));
    const open = store.targets.has(argument) ? argument : null;
    const focused = open ?? cells[0]?.id;
    const many = all.length > MANY;
    const ends = sharedEnds(all.map(shortName));
    return html`<form class="tools" onSubmit=${(e) => e.preventDefault()}>
      <label>Show <input type="search" placeholder="name, state, model …" value=${filter} onInput=${(e) => setFilter(e.target.value)} /></label>
      <label>Sort by <select value=${sort} onChange=${(e) => setSort(e.target.value)}>
        ${Object.entries(SORTS).map(([id, { label }]) => html`<option value=${id}>${label}</option>`)}</select></label>
      <span class="faint">${cells.length === all.length ? plural(all.length, "target") : `${cells.length} of ${plural(all.length, "target")}`}</span>
      <${Legend} many=${many} />
    </form>
    <${Pairs} cells=${all} />
    <div class="split ${open ? "open" : ""}">
      ${all.length === 0 ? html`<p>No engines. They come from the configuration's section <code>fleet</code>.</p>` : ""}
      <ul class="cells ${many ? "many" : ""}" ref=${grid} onKeyDown=${(e) => move(e, grid.current)} aria-label="Targets">
        ${cells.map((cell) => html`<${Cell} key=${cell.id} cell=${cell} seconds=${seconds} many=${many} ends=${ends} open=${cell.id === open} focused=${cell.id === focused} />`)}
      </ul>
      ${open ? html`<${TargetDetail} key=${open} id=${open} store=${store} troubles=${troubles(store.targets.get(open))} />` : ""}
    </div>`;
}

const by = (of) => (a, b) => {
    const [x, y] = [of(a), of(b)];
    if (typeof x === "number" && x !== y) return x - y;
    return a.id.localeCompare(b.id, "en", { numeric: true });
};

/** Arrow keys go from cell to cell. */
function move(event, grid) {
    const cells = [...grid.querySelectorAll(".cell")];
    const at = cells.indexOf(document.activeElement);
    if (at < 0) return;
    const perRow = cells.filter((cell) => cell.offsetTop === cells[0].offsetTop).length;
    const steps = {
        ArrowRight: 1,
        ArrowLeft: -1,
        ArrowDown: perRow,
        ArrowUp: -perRow,
        Home: -at,
        End: cells.length - 1 - at,
    };
    const next = cells[at + steps[event.key]];
    if (!next) return;
    event.preventDefault();
    next.focus();
}

const rateOf = (n, seconds) => (seconds > 0 ? amount(n / seconds) : "–");

/** Shares of prompt tokens, promised → delivered; where nothing was promised, what was delivered of all. */
export const promise = (sum) =>
    sum.promisedPrompt
        ? `${share(sum.predicted / sum.promisedPrompt)} → ${share(sum.compared / sum.promisedPrompt)}`
        : `– → ${share(ratio(sum.delivered, sum.prompt))}`;

function Cell({ cell, seconds, many, ends, open, focused }) {
    const found = troubles(cell);
    const sign = found[0]?.level ?? "ok";
    const joined = cell.requests !== undefined;
    const memory = joined ? memoryParts(cell) : [];
    const { flow } = cell;
    const failed = flow?.failed ?? 0;
    const title = found.map((t) => t.text).join("; ") || "no trouble";
    return html`<li><a class="cell ${sign} ${cell.state}" href=${open ? "#fleet" : `#fleet/${encodeURIComponent(cell.id)}`} tabindex=${focused ? 0 : -1}
      aria-current=${open ? "true" : null} title=${`${cell.id}: ${title}`}>
    <span class="line"><span class="sign" aria-hidden="true">${SIGN[sign]}</span><strong><${Name} text=${shortName(cell)} ends=${ends} /></strong>
      ${cell.role && cell.role !== "both" ? html`<span class="role">${cell.role === "prefill" ? "P" : "D"}</span>` : ""}
      <span class="queue">${many && failed ? html`<span class="bad">${plural(failed, "error")}</span>` : joined && cell.queued_ms ? html`<small>queued</small> ${duration(cell.queued_ms)}` : ""}</span></span>
    ${found.length ? html`<span class="why">${found[0].text}</span>` : ""}
    ${
        joined
            ? html`<span class="line figures"><span><small>prefills</small> ${count(cell.prefilling)}</span><span><small>streams</small> ${count(cell.requests - cell.prefilling)}</span><span>${count(cell.running)} <small>running,</small> ${count(cell.waiting)} <small>waiting</small></span></span>
          <${Bar} parts=${memory} whole=${cell.capacity} title=${memoryText(cell)} />
          <span class="line figures"><span>${rateOf(flow?.placed ?? 0, seconds)} <small>requests/s</small></span><span class=${failed ? "bad" : ""}>${count(failed)} <small>${failed === 1 ? "error" : "errors"}</small></span></span>
          <span class="line figures"><span><small>hits</small> ${flow ? promise(flow) : "–"}</span><span><small>events</small> ${eventText(cell)}</span></span>`
            : html`<span class="line figures">not joined</span>`
    }
  </a></li>`;
}

const shortName = (cell) => (cell.ranks > 1 ? cell.id : cell.instance);

function memoryParts({ live, held, capacity }) {
    if (!capacity) return [];
    return [
        { kind: "live", value: live ?? 0 },
        { kind: "cached", value: held === null ? 0 : Math.max(0, held - (live ?? 0)) },
    ];
}

function eventText(cell) {
    if (!cell.stream) return "none";
    if (cell.stream !== "live") return cell.stream;
    return cell.silent_s >= 30
        ? `${duration(cell.silent_s * 1000)} ago`
        : cell.lag_ms === null
          ? "–"
          : `${duration(Math.max(0, cell.lag_ms))} late`;
}

/** What the cells say, and of which time. */
function Legend({ many }) {
    return html`<span class="legend">${many ? "queued prefill: now; errors: last 5 min; " : "prefills, streams (this router's), running, waiting (the engine's): now; requests, errors, hits promised → delivered: last 5 min; "}<span aria-hidden="true"><i class="live"></i>live KV <i class="cached"></i>cached <i class="track"></i>free</span></span>`;
}

/** Which prefill targets can hand KV to which decode targets: one transfer protocol and one revision. */
export function pairGroups(cells) {
    const groups = new Map();
    for (const cell of cells.filter((cell) => cell.role && cell.role !== "both")) {
        const key = `${cell.transfer ?? "no transfer"}${cell.revision ? `, revision ${cell.revision}` : ""}`;
        const group = groups.get(key) ?? { prefill: [], decode: [], not: [] };
        group[cell.role].push(cell.id);
        if (cell.pairable === false) group.not.push(cell.id);
        groups.set(key, group);
    }
    return groups;
}

function Pairs({ cells }) {
    const groups = pairGroups(cells);
    if (!groups.size) return "";
    return html`<section class="pairs" aria-label="Prefill and decode pairs">
    ${[...groups].map(
        ([
            key,
            { prefill, decode, not },
        ]) => html`<p><strong>${key}</strong>: ${names(prefill, 6) || "no prefill target"} → ${names(decode, 6) || "no decode target"}
      ${!prefill.length || !decode.length ? html` <span class="bad">no pair is possible</span>` : ""}
      ${not.length ? html` <span class="warn">engine id not known yet: ${names(not)}</span>` : ""}</p>`,
    )}
  </section>`;
}
