// Is it the engines, the events, the pool, the policy, or the router? One verdict each, from the picture.

import { duration, names, plural, share } from "./format.js";
import { pairGroups } from "./fleet.js";
import { lastSeconds, quantile } from "./flow_sums.js";

const SLOW_MS = 100; // of the event loop, and of the router's own time: a first token waits as long
const LAG_MS = 2000;
const RECENT_S = 900;
const NEWS_S = 60; // a refused command changed nothing: it is news, not the fleet's state
const FAILED_SHARE = 0.02; // of requests, as of the alert WarmrouteErrors
const FAILED_MANY = 5; // fewer may be an accident
const BLIND_SHARE = 0.05; // of requests, placed without the ids of their prompts

const verdict = (name, view, problems, fine) => {
    const level = problems.some((p) => p.level === "bad") ? "bad" : problems.length ? "warn" : (fine.level ?? "ok");
    const rank = (p) => (p.level === "bad" ? 0 : 1);
    const text = problems.length
        ? [...problems]
              .sort((a, b) => rank(a) - rank(b))
              .map((p) => p.text)
              .join("; ")
        : fine.text;
    return { name, view, level, text };
};

export function verdicts(store) {
    const cells = [...store.targets].map(([id, cell]) => ({ id, ...cell }));
    return [engines(store, cells), events(store, cells), pool(store), policy(store), router(store)];
}

function engines(store, cells) {
    const states = new Map(cells.map((cell) => [cell.instance, cell]));
    const of = (state) => [...states.values()].filter((cell) => cell.state === state).map((cell) => cell.instance);
    const problems = [];
    const total = states.size;
    if (of("down").length) problems.push({ level: "bad", text: `${names(of("down"))} down` });
    if (!of("ready").length) problems.push({ level: "bad", text: total ? "none is ready" : "no engine is known" });
    if (of("joining").length) problems.push({ level: "warn", text: `${names(of("joining"))} joining` });
    const stuck = cells.filter((cell) => cell.stuck).map((cell) => cell.id);
    if (stuck.length) problems.push({ level: "bad", text: `stuck, with requests and no progress: ${names(stuck)}` });
    const slow = [...states.values()].filter((cell) => cell.slowdown);
    if (slow.length)
        problems.push({
            level: "warn",
            text: `slower than usual: ${names(slow.map((cell) => `${cell.instance} (${cell.slowdown} times)`))}`,
        });
    const tripped = (cell) => cell.breaker && cell.breaker !== "closed" && !cell.stuck;
    const broken = cells.filter(tripped).map((cell) => cell.id);
    if (broken.length) problems.push({ level: "bad", text: `breaker open at ${names(broken)}` });
    const distrusted = [...states.values()].filter((cell) => cell.distrust).map((cell) => cell.instance);
    if (distrusted.length) problems.push({ level: "warn", text: `${names(distrusted)} reports more than it may` });
    for (const [key, { prefill, decode }] of pairGroups(cells))
        if (!prefill.length || !decode.length)
            problems.push({ level: "warn", text: `${names([...prefill, ...decode])} (${key}) cannot be paired` });
    const sum = lastSeconds(store, 300);
    if (sum && sum.failed > FAILED_SHARE * sum.ended)
        problems.push({
            level: sum.failed < FAILED_MANY ? "warn" : "bad",
            text: `${plural(sum.failed, "request")} (${share(sum.failed / sum.ended)}) failed in 5 min`,
        });
    const draining = of("draining").length;
    return verdict("Engines", "fleet", problems, {
        text: `${of("ready").length} of ${total} ready${draining ? `, ${draining} draining` : ""}`,
    });
}

function events(store, cells) {
    const joined = cells.filter((cell) => cell.state === "ready" || cell.state === "draining");
    const streams = joined.filter((cell) => cell.stream);
    const problems = [];
    const off = joined.filter((cell) => !cell.stream && !cell.silent_faults?.length).length;
    const list = (found, level, what) =>
        found.length && problems.push({ level, text: `${names(found.map((c) => c.id))} ${what}` });
    list(
        streams.filter((cell) => cell.stream !== "live" && cell.stream !== "new"),
        "warn",
        "replaying or lost",
    );
    list(
        streams.filter((cell) => cell.lag_ms > LAG_MS),
        "warn",
        `later than ${duration(LAG_MS)}`,
    );
    list(
        joined.filter((cell) => cell.trusted === false),
        "bad",
        "promised hits that were not delivered",
    );
    list(
        joined.filter((cell) => cell.alarm),
        "bad",
        "hits caches that the index does not know",
    );
    list(
        streams.filter((cell) => cell.unplaced),
        "warn",
        "joined late: cached prompts that are not known yet",
    );
    problems.push(...silentFaults(store, joined));
    const sum = lastSeconds(store, 300);
    if (sum && sum.blind > BLIND_SHARE * sum.placed)
        problems.push({
            level: "warn",
            text: `${share(sum.blind / sum.placed)} of requests placed without token ids`,
        });
    if (off && streams.length) problems.push({ level: "warn", text: `${plural(off, "target")} without events` });
    if (!streams.length)
        return verdict("Events", "fleet", problems, {
            level: "off",
            text: joined.length ? "no engine publishes any" : "–",
        });
    return verdict("Events", "fleet", problems, { text: `${plural(streams.length, "stream")} live` });
}

/** Faults that cost hits by a policy in use, each with the instances that have it. */
function silentFaults(store, cells) {
    const at = new Map((store.router?.silent_faults ?? []).filter((f) => f.needed).map((f) => [f.what, new Set()]));
    for (const cell of cells)
        for (const fault of (cell.silent_faults ?? []).filter((f) => f.needed))
            at.set(fault.what, (at.get(fault.what) ?? new Set()).add(cell.instance));
    const text = (what, instances) => (instances.size ? `${names([...instances])}: ${what}` : what);
    return [...at].map(([what, instances]) => ({ level: "warn", text: text(what, instances) }));
}

function pool(store) {
    const pool = store.router?.pool;
    if (!pool) return verdict("Pool", "cache", [], { level: "off", text: "none configured" });
    const problems = [];
    if (!pool.leader) problems.push({ level: "bad", text: "no master leads" });
    for (const model of pool.models)
        if (model.trouble) problems.push({ level: "warn", text: `${model.model}: ${model.trouble}` });
    const sum = lastSeconds(store, 300);
    const used = sum && sum.prompt ? `, ${share(sum.pool / sum.prompt)} of prompt tokens` : "";
    return verdict("Pool", "cache", problems, { text: `${pool.leader}${used}` });
}

function policy(store) {
    const policies = store.router?.policies;
    if (!policies) return verdict("Policy", "flow", [], { level: "off", text: "–" });
    const problems = Object.entries(policies.errors)
        .filter(([source, failure]) => source !== "admin" || failure.at_wall_s > store.now - NEWS_S)
        .map(([source, failure]) => ({
            level: "warn",
            text: source === "admin" ? `a command was refused: ${failure.text}` : `${source}: ${failure.text}`,
        }));
    if (policies.rolled_back.length)
        problems.push({ level: "bad", text: `${names(policies.rolled_back)} rolled back` });
    else if (store.marks.some((mark) => mark.kind === "rollback" && mark.at > store.now - RECENT_S))
        problems.push({ level: "warn", text: "a rollback in the last 15 minutes" });
    const arms = Object.entries(policies.arms);
    const running = `experiment: ${names(arms.map(([arm, percent]) => `${arm} ${percent} %`))}`;
    return verdict("Policy", store.router.experiment ? "experiments" : "flow", problems, {
        text: store.router.experiment ? running : policies.active,
    });
}

function router(store) {
    const facts = store.router;
    if (!facts) return verdict("Router", "router", [], { level: "off", text: "–" });
    const problems = [];
    const [up, all] = facts.workers;
    if (up < all) problems.push({ level: "bad", text: `${up} of ${plural(all, "worker")} up` });
    if (facts.worker_trouble)
        problems.push({ level: "bad", text: `a worker has other policies: ${facts.worker_trouble}` });
    if (facts.late_ms > SLOW_MS) problems.push({ level: "warn", text: `event loop ${duration(facts.late_ms)} late` });
    for (const [source, trouble] of Object.entries(facts.discovery))
        if (trouble) problems.push({ level: "warn", text: `${source}: ${trouble}` });
    if (facts.policies.audit.trouble) problems.push({ level: "warn", text: facts.policies.audit.trouble });
    for (const model of facts.admission ?? []) {
        const queued = Object.values(model.queued).reduce((a, b) => a + b, 0);
        if (queued) problems.push({ level: "warn", text: `${plural(queued, "request")} wait for admission` });
    }
    const own = quantile(lastSeconds(store, 300)?.own ?? new Map(), 0.99);
    if (own > SLOW_MS) problems.push({ level: "warn", text: `adds ${duration(own)} (p99 of 5 min)` });
    const workers = all > 1 ? `${plural(all, "worker")}, ` : "";
    return verdict("Router", "router", problems, {
        text: own === null ? `${workers}idle` : `${workers}adds ${duration(own)} (p99 of 5 min)`,
    });
}
