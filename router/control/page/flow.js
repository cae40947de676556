// The flow of requests of the last minutes from policies or arms to targets, and how it went over time, with
// the moment of each switch, rollback, join and leave.

import { ask, send } from "./admin.js";
import { confirmAction, planOf } from "./actions.js";
import { Chart, MARK_SIGN } from "./charts.js";
import { promise } from "./fleet.js";
import { amount, count, duration, momentOf, names, plural, share, timeOf, tokens } from "./format.js";
import { lanes, lastSeconds, overTime, quantile } from "./flow_sums.js";
import { html, useState } from "./lib.js";
import { briefName } from "./name.js";
import { categoryColor, useNarrow } from "./svg.js";

const STEP_S = 10;
const SHOWN = 14; // targets in the picture; the others are one
const ROW = 26;
// Of the picture: its width, the x of its lanes and targets, and the characters of a name. A phone has the names on the bands.
const WIDE = { width: 900, x0: 190, x1: 610, lane: 19, longest: 30 };
const PHONE = { width: 350, x0: 4, x1: 346, lane: 14, longest: 20 };

const part = (a, b) => (b ? a / b : null);

export function Flow({ store }) {
    const found = lanes(store);
    const colors = Object.fromEntries([...found].sort().map((lane, i) => [lane, categoryColor(i)]));
    return html`<${Switcher} store=${store} />
    <section class="panel"><h2>The last 5 minutes</h2><${Balance} store=${store} /><${Sankey} store=${store} colors=${colors} /></section>
    <div class="charts"><${Courses} store=${store} lanes=${found} colors=${colors} /></div>
    <${Marks} store=${store} />`;
}

function Balance({ store }) {
    const placed = [...sumBy(store.flowTargets, "target").entries()];
    const serving = [...store.targets].filter(([, cell]) => cell.state === "ready" && cell.role !== "prefill");
    const total = placed.reduce((sum, [, n]) => sum + n, 0);
    const mean = serving.length ? total / serving.length : 0;
    const [busiest, most] = placed.sort((a, b) => b[1] - a[1])[0] ?? [null, 0];
    const sum = lastSeconds(store, 300);
    return html`<dl class="figures-line">
    <div><dt>requests</dt><dd>${count(total)}</dd></div>
    <div><dt>imbalance</dt><dd>${mean ? `${amount(most / mean)} ×` : "–"}</dd><dd class="faint">${busiest ? `${busiest} against the mean of the ready targets` : ""}</dd></div>
    <div><dt>sessions kept on their target</dt><dd>${share(part(sum.stayed, sum.returning))}</dd><dd class="faint">of ${count(sum.returning)} requests of known sessions</dd></div>
    <div><dt>hits promised → delivered</dt><dd>${promise(sum)}</dd><dd class="faint">of ${tokens(sum.promisedPrompt || sum.prompt)} prompt tokens</dd></div>
  </dl>`;
}

function sumBy(rows, name) {
    const sums = new Map();
    for (const row of rows) sums.set(row[name], (sums.get(row[name]) ?? 0) + row.placed);
    return sums;
}

/** Bands from lanes to targets, as thick as their requests are many. */
function Sankey({ store, colors }) {
    const narrow = useNarrow();
    const { width, x0, x1, lane: most, longest } = narrow ? PHONE : WIDE;
    const rows = store.flowTargets.filter((row) => row.placed);
    if (!rows.length) return html`<p class="faint">No request in the last 5 minutes.</p>`;
    const byTarget = [...sumBy(rows, "target")].sort((a, b) => b[1] - a[1]);
    const shown = new Set(byTarget.slice(0, byTarget.length > SHOWN + 1 ? SHOWN : SHOWN + 1).map(([id]) => id));
    const rest = byTarget.filter(([id]) => !shown.has(id));
    const place = (id) => (shown.has(id) ? id : `${plural(rest.length, "other target")}`);
    const bands = new Map();
    for (const row of rows) {
        const key = `${row.lane}\n${place(row.target)}`;
        bands.set(key, (bands.get(key) ?? 0) + row.placed);
    }
    const total = rows.reduce((sum, row) => sum + row.placed, 0);
    const right = [
        ...new Set([
            ...[...shown].sort((a, b) => a.localeCompare(b, "en", { numeric: true })),
            ...(rest.length ? [place(rest[0][0])] : []),
        ]),
    ];
    const left = [...sumBy(rows, "lane").keys()].sort();
    const height = Math.max(right.length, 4) * ROW;
    const gap = 6;
    const scale = (height - gap * (right.length - 1)) / total;
    const wide = (list, of) => {
        const space =
            list.length > 1 ? (height - list.reduce((sum, id) => sum + of(id) * scale, 0)) / (list.length - 1) : 0;
        let y = list.length > 1 ? 0 : (height - of(list[0]) * scale) / 2;
        return new Map(
            list.map((id) => {
                const at = { y, height: of(id) * scale, used: 0 };
                y += at.height + space;
                return [id, at];
            }),
        );
    };
    const of = (index) => (id) =>
        [...bands].reduce((sum, [key, n]) => sum + (key.split("\n")[index] === id ? n : 0), 0);
    const from = wide(left, of(0));
    const to = wide(right, of(1));
    const drawn = [...bands]
        .sort((a, b) => right.indexOf(a[0].split("\n")[1]) - right.indexOf(b[0].split("\n")[1]))
        .map(([key, n]) => {
            const [lane, target] = key.split("\n");
            const [a, b] = [from.get(lane), to.get(target)];
            const [ya, yb, h] = [a.y + a.used + (n * scale) / 2, b.y + b.used + (n * scale) / 2, n * scale];
            a.used += h;
            b.used += h;
            const middle = (x0 + x1) / 2;
            return html`<path class="band" d="M${x0} ${ya}C${middle} ${ya} ${middle} ${yb} ${x1} ${yb}" style=${`stroke: var(${colors[lane]}); stroke-width: ${Math.max(1, h)}`}><title>${lane} to ${target}: ${count(n)}</title></path>`;
        });
    const failed = new Map();
    for (const row of rows) failed.set(place(row.target), (failed.get(place(row.target)) ?? 0) + row.failed);
    const label = `${left.map((lane) => `${lane}: ${count(of(0)(lane))} requests`).join("; ")}; to ${names(
        byTarget.map(([id, n]) => `${id}: ${count(n)}`),
        SHOWN,
    )}`;
    return html`<div class="wide"><svg class="sankey" viewBox="0 -2 ${width} ${height + 4}" role="img" aria-label=${label}>
    ${drawn}
    ${left.map(
        (
            lane,
        ) => html`<rect x=${x0 - 4} width="4" y=${from.get(lane).y} height=${Math.max(1, from.get(lane).height)} style=${`fill: var(${colors[lane]})`} />
      <text x=${narrow ? x0 + 6 : x0 - 10} y=${from.get(lane).y + from.get(lane).height / 2} text-anchor=${narrow ? "start" : "end"} dy=".35em"><tspan class="strong">${briefName(lane || "no policy", undefined, most)}</tspan> ${share(of(0)(lane) / total)}</text>`,
    )}
    ${right.map((id) => {
        const n = of(1)(id);
        const bad = failed.get(id);
        return html`<rect class="node" x=${x1} width="4" y=${to.get(id).y} height=${Math.max(1, to.get(id).height)} />
        <text x=${narrow ? x1 - 6 : x1 + 10} y=${to.get(id).y + to.get(id).height / 2} text-anchor=${narrow ? "end" : "start"} dy=".35em"><tspan class="strong">${briefName(id, store.targets.has(id) ? store.ends : undefined, longest)}</tspan> ${count(n)} (${share(n / total)})${bad ? html`<tspan class="failed">, ${count(bad)} failed</tspan>` : ""}</text>`;
    })}
  </svg></div>`;
}

function Courses({ store, lanes, colors }) {
    const several = lanes.length > 1;
    const all = overTime(store, null, STEP_S);
    if (all.t.length < 2) return html`<p class="faint">The charts begin with the first requests.</p>`;
    const each = several ? lanes.map((lane) => [lane, overTime(store, lane, STEP_S)]) : [[lanes[0] ?? "all", all]];
    const series = (of, suffix = "") =>
        each.map(([lane, { sums }]) => ({
            label: `${lane}${suffix}`,
            color: colors[lane] ?? "--c1",
            values: sums.map(of),
        }));
    const common = { t: all.t.map((t) => t + STEP_S / 2), marks: store.marks };
    const p = (q) => (s) => quantile(s.ttft, q);
    return html`
    <${Chart} ...${common} title="Time to first token, p99 (lines) and p50 (dashed)" format=${duration}
      series=${[...series(p(0.99), several ? " p99" : ""), ...series(p(0.5), " p50").map((s) => ({ ...s, dash: [4, 4] }))]} />
    <${Chart} ...${common} title="Share of prompt tokens cached: delivered (lines) and promised (dashed)" format=${share} range=${() => [0, 1]}
      series=${[...series((s) => part(s.delivered, s.prompt)), ...series((s) => part(s.predicted, s.promisedPrompt), " promised").map((s) => ({ ...s, dash: [4, 4] }))]} />
    <${Chart} ...${common} title="Requests per second" format=${amount} series=${series((s) => s.placed / STEP_S)} />
    <${Chart} ...${common} title="Sessions kept on their target" format=${share} range=${() => [0, 1]} series=${series((s) => part(s.stayed, s.returning))} />`;
}

const KINDS = {
    switch: "switch",
    rollback: "rollback",
    alarm: "alarm",
    start: "router started",
    join: "joins",
    leave: "leaves",
    state: "state",
};

function Marks({ store }) {
    const shown = [...store.marks].reverse().slice(0, 30);
    return html`<section class="panel"><h2>Events</h2>
    <p class="faint">Switches and rollbacks are from the audit log; joins and leaves are noted while a page is open.</p>
    <table><thead><tr><th scope="col">at</th><th scope="col" class="text">mark</th><th scope="col" class="text">what</th></tr></thead>
    <tbody>${shown.map(
        (mark) => html`<tr><td title=${momentOf(mark.at)}>${timeOf(mark.at)}</td>
      <td class="text"><span class="mark ${mark.kind}">${MARK_SIGN[mark.kind] ?? "·"}</span> ${KINDS[mark.kind] ?? mark.kind}</td><td class="text wrap">${describeMark(mark)}</td></tr>`,
    )}</tbody></table></section>`;
}

function describeMark(mark) {
    if (mark.instance)
        return mark.kind === "state" ? `${mark.instance} is ${mark.state}` : `${mark.instance} ${KINDS[mark.kind]}`;
    const what = mark.arm ? `${mark.arm}: ${mark.what}` : mark.what;
    return `${mark.who}: ${what}${mark.why ? `: ${mark.why}` : ""}; ${mark.active} is active`;
}

/** The policy in force, and for those with the right: another one, or the one before. */
function Switcher({ store }) {
    const [chosen, setChosen] = useState("");
    const policies = store.router.policies;
    if (!store.may) return html`<p class="tools">Policy: <strong>${policies.active}</strong></p>`;
    const activate = () => {
        const body = (dry_run) => JSON.stringify({ policy: chosen, dry_run });
        confirmAction({
            title: `Switch to ${chosen}`,
            plan: async () => planOf(await send("POST", "admin/activate", body(true))),
            act: () => send("POST", "admin/activate", body(false)).then(() => setChosen("")),
        });
    };
    const undo = () =>
        confirmAction({
            title: `Undo: ${policies.undo[0]}`,
            plan: async () => planOf(await send("POST", "admin/undo?dry_run=true")),
            act: () => ask("admin/undo", { method: "POST" }),
        });
    return html`<form class="tools" onSubmit=${(e) => e.preventDefault()}>
    <span>Policy: <strong>${policies.active}</strong></span>
    <label>Switch to <select value=${chosen} onChange=${(e) => setChosen(e.target.value)}><option value="">…</option>
      ${policies.names.filter((name) => name !== policies.active).map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
    <button disabled=${!chosen} onClick=${activate}>Show the plan …</button>
    ${policies.undo.length ? html`<button onClick=${undo}>Undo “${policies.undo[0]}” …</button>` : ""}
  </form>`;
}
