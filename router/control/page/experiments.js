// Experiments: arms with intervals that tighten as you watch, verdicts, the guard's and the limits' state, shadows; and
// for those with the right: start one, end it.

import { ask, send, usePolled } from "./admin.js";
import { confirmAction, planOf } from "./actions.js";
import { amount, count, duration, momentOf, share } from "./format.js";
import { html, useState } from "./lib.js";

const REFRESH_MS = 2000;
const METRICS = {
    ttft_p50: "time to first token, p50",
    ttft_p90: "time to first token, p90",
    duration_p90: "whole answer, p90",
    hit_share: "cache hits",
    error_rate: "failed",
};
const isShare = (metric) => metric === "hit_share" || metric === "error_rate";
const text = (metric) => (isShare(metric) ? share : duration);
const shown = (value, metric) => (value === "infinite" ? "no answer" : text(metric)(value));

export function Experiments({ store }) {
    const { found, error } = usePolled("admin/experiment", REFRESH_MS, store.router.policies.experiment);
    if (error) return html`<p role="alert" class="error">${error.message}</p>`;
    if (!found) return html`<p class="faint">Reading the experiment …</p>`;
    return html`${found.running ? html`<${Running} experiment=${found} store=${store} />` : html`<p>No experiment is running; <strong>${store.router.policies.active}</strong> decides for all requests.</p>`}
    ${store.may ? html`<${Start} running=${found.running} />` : ""}
    ${found.last ? html`<details class="last"><summary>The last experiment, ended ${momentOf(found.last.ended_at_wall_s)}</summary><${Results} experiment=${found.last} /></details>` : ""}`;
}

function Running({ experiment, store }) {
    const end = () =>
        confirmAction({
            title: "End the experiment",
            plan: async () => planOf(await send("DELETE", "admin/experiment?dry_run=true")),
            act: () => ask("admin/experiment", { method: "DELETE" }),
        });
    return html`<div class="tools"><span>Drawn by <strong>${experiment.experiment.unit}</strong>, seed ${experiment.experiment.seed}; <span class="faint">${experiment.fingerprint}</span></span>
      ${store.may ? html`<button onClick=${end}>End …</button>` : ""}</div><${Results} experiment=${experiment} />`;
}

function Results({ experiment }) {
    const { report } = experiment;
    if (!report) return "";
    const metrics = report.arms[0].standings.map((s) => s.metric);
    return html`${report.warnings.map((warning) => html`<p class="trouble warn">${warning}</p>`)}
    <div class="arms">${report.arms.map((arm, i) => html`<${Arm} arm=${arm} first=${i === 0} guardBar=${report.guard_bar} />`)}</div>
    <div class="metrics">${metrics.map((metric, i) => html`<${Intervals} metric=${metric} index=${i} report=${report} />`)}</div>
    <p class="faint">All intervals hold jointly, and at any time, with probability ${share(1 - report.alpha)}. A verdict needs evidence of ${amount(report.bar)}.</p>
    <${Rules} experiment=${experiment.experiment} />
    <${Shadows} shadows=${experiment.shadows ?? []} />`;
}

function Arm({ arm, first, guardBar }) {
    const evidence = arm.guard_evidence;
    // Evidence multiplies, so the way to the bar is drawn by its logarithm.
    const way =
        evidence === null || guardBar === "infinite"
            ? 0
            : Math.max(
                  0,
                  Math.min(
                      1,
                      Math.log(Math.max(1, evidence === "infinite" ? guardBar : evidence)) / Math.log(guardBar),
                  ),
              );
    return html`<section class="arm ${arm.out ? "out" : ""}"><h2>${arm.arm}${first ? html` <small>the others are compared with it</small>` : ""}</h2>
    ${arm.out ? html`<p class="trouble bad">out: ${arm.out}</p>` : ""}
    <dl class="facts"><dt>share</dt><dd>${amount(arm.share)} %</dd><dt>policy</dt><dd>${arm.policy}${arm.admission ? `, admission by ${arm.admission}` : ""}</dd>
      <dt>units</dt><dd>${count(arm.units_closed)} over, ${count(arm.units_open)} open</dd><dt>requests</dt><dd>${count(arm.requests)}${arm.failed ? html`, <span class="bad">${count(arm.failed)} failed</span>` : ""}</dd>
      <dt>spread</dt><dd>${arm.spread === null ? "–" : `${amount(arm.spread)} × the mean at its busiest target`}</dd>
      ${first ? "" : html`<dt>guard</dt><dd><meter min="0" max="1" low="0.5" high="0.85" optimum="0" value=${way} aria-label="Guard's evidence against ${arm.arm}"></meter> ${evidence === null ? "no evidence yet" : `${amount(evidence)} of ${amount(guardBar)}`}</dd>`}</dl></section>`;
}

/** Estimates and intervals of one metric, all arms on one scale. */
function Intervals({ metric, index, report }) {
    const rows = report.arms.map((arm) => ({ arm: arm.arm, ...arm.standings[index] }));
    const finite = rows.flatMap((r) => [r.estimate, r.low, r.high]).filter((v) => typeof v === "number");
    const estimates = rows.map((r) => r.estimate).filter((v) => typeof v === "number");
    if (!finite.length)
        return html`<section class="intervals"><h3>${METRICS[metric] ?? metric}</h3><p class="faint">No finished units yet.</p></section>`;
    // An interval is wide at first: the scale follows the estimates, and what is beyond it ends at the edge.
    const top = isShare(metric)
        ? Math.min(1, Math.max(...finite) * 1.1 || 1)
        : Math.min(Math.max(...finite), 4 * Math.max(...estimates, 1e-9)) * 1.05;
    const x = (v) => (v === "infinite" || v > top ? 100 : (100 * Math.max(0, v)) / top);
    return html`<section class="intervals"><h3>${METRICS[metric] ?? metric}</h3><div class="wide" tabindex="0" role="region" aria-label=${METRICS[metric] ?? metric}><table><tbody>${rows.map(
        (r) => html`<tr>
    <th scope="row">${r.arm}<small class="verdict-${(r.verdict ?? "").split(" ")[0]}">${r.verdict}${r.verdict === "not yet known" && r.requests_needed ? `: about ${count(r.requests_needed)} more requests` : ""}</small></th><td>${shown(r.estimate, metric)} <span class="faint">${r.low === null ? "" : `(${shown(r.low, metric)} to ${shown(r.high, metric)})`}</span></td>
    <td class="lane">${r.low === null ? "" : html`<i class="interval" style=${`left: ${x(r.low)}%; width: ${Math.max(0.5, x(r.high) - x(r.low))}%`}></i>`}${r.estimate === null ? "" : html`<b style=${`left: ${x(r.estimate)}%`}></b>`}</td></tr>`,
    )}</tbody>
    <tfoot aria-hidden="true"><tr><td></td><td></td><td class="axis faint"><span>0</span><span>${text(metric)(top)}</span></td></tr></tfoot></table></div></section>`;
}

function Rules({ experiment }) {
    const { guard, limits } = experiment;
    const lines = [];
    if (guard)
        lines.push(
            `Guard: an arm whose ${METRICS[guard.metric] ?? guard.metric} is more than ${share(guard.worse_by)} worse than the first one's, after ${count(guard.min_units)} units, is ${guard.action === "rollback" ? "rolled back" : "reported"} (false alarms: ${share(guard.alpha)}).`,
        );
    if (limits?.ttft_p90_max_ms)
        lines.push(`Limit: a time to first token of ${duration(limits.ttft_p90_max_ms)} at p90.`);
    if (limits?.error_rate_max) lines.push(`Limit: ${share(limits.error_rate_max)} failed requests.`);
    return html`<ul class="plan">${lines.map((line) => html`<li>${line}</li>`)}</ul>`;
}

function Shadows({ shadows }) {
    if (!shadows.length) return "";
    const signed = (v, of) =>
        typeof v !== "number" ? "–" : `${v > 0 ? "+" : ""}${of(v)}`;
    return html`<h2>Shadows</h2><p class="faint">Shadows decide on the same requests and send nothing. Differences: prediction for the shadow's choice minus prediction for the real choice, mean of all decisions.</p>
    <div class="wide" tabindex="0" role="region" aria-label="Shadows"><table><thead><tr><th scope="col">policy</th><th scope="col">agrees</th><th scope="col">choices</th><th scope="col">first token</th><th scope="col">overlap</th><th scope="col" class="text">state</th></tr></thead>
    <tbody>${shadows.map(
        (
            s,
        ) => html`<tr><th scope="row">${s.policy}</th><td>${share(s.agreement)}</td><td>${count(s.decisions)}</td>
      <td>${signed(s.ttft_ms, duration)}</td><td>${signed(s.overlap_tokens, amount)}</td><td class="text">${s.out ? `out: ${s.out}` : "ok"}</td></tr>`,
    )}</tbody></table></div>`;
}

const EXAMPLE = `experiment:
  unit: session
  seed: 1
  arms: {warm: 50, least_work_left: 50}
`;

function Start({ running }) {
    const [yaml, setYaml] = useState(EXAMPLE);
    const start = (event) => {
        event.preventDefault();
        confirmAction({
            title: running ? "Replace the experiment" : "Start the experiment",
            plan: async () => planOf(await send("PUT", "admin/experiment?dry_run=true", yaml, "application/yaml")),
            act: () => send("PUT", "admin/experiment", yaml, "application/yaml"),
        });
    };
    return html`<details class="start"><summary>${running ? "Start another experiment" : "Start an experiment"}</summary><form onSubmit=${start}>
    <label for="experiment-text">The section “experiment” of a configuration</label>
    <textarea id="experiment-text" rows="9" spellcheck="false" value=${yaml} onInput=${(e) => setYaml(e.target.value)}></textarea>
    <p class="buttons"><button>Show the plan …</button></p></form></details>`;
}
