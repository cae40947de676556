// The page: connection, header with the verdicts, navigation, and the view that the address names.

import { Refused, setToken, token } from "./admin.js";
import { Dialogs } from "./actions.js";
import { Cache } from "./cache.js";
import { Experiments } from "./experiments.js";
import { follow } from "./feed.js";
import { Fleet } from "./fleet.js";
import { Flow } from "./flow.js";
import { count, duration, share, timeOf } from "./format.js";
import { lastSeconds, overTime, quantile } from "./flow_sums.js";
import { html, render, useEffect, useRef, useState } from "./lib.js";
import { Requests } from "./request.js";
import { RouterFacts } from "./router.js";
import { Spark } from "./svg.js";
import { Store } from "./store.js";
import { Tenants } from "./tenants.js";
import { verdicts } from "./verdicts.js";

const VIEWS = [
    ["fleet", "Fleet", Fleet],
    ["flow", "Request flow", Flow],
    ["cache", "The cache", Cache],
    ["experiments", "Experiments", Experiments],
    ["request", "Requests", Requests],
    ["tenants", "Tenants", Tenants],
    ["router", "Router", RouterFacts],
];

/** The views of this router; tenants only where clients must say who they are. */
const views = () => VIEWS.filter(([id]) => id !== "tenants" || store.router?.tenants);

const store = new Store();
let stopFeed = () => {};
let drawn = 0;

function draw() {
    cancelAnimationFrame(drawn);
    // A hidden tab draws nothing; it is drawn when it is looked at again.
    drawn = requestAnimationFrame(() => render(html`<${Page} store=${store} />`, document.getElementById("app")));
}

function connect() {
    stopFeed();
    stopFeed = follow({
        event(name, data) {
            store.apply(name, data);
            draw();
        },
        state(state, error) {
            if (state !== "live" && store.connection === "live") store.lostAt = Date.now() / 1000;
            store.connection = state;
            store.error = error;
            draw();
        },
    });
}

const place = () => {
    const [view, ...rest] = location.hash.slice(1).split("/");
    return [views().some(([id]) => id === view) ? view : "fleet", decodeURIComponent(rest.join("/"))];
};

function Page({ store }) {
    const refused = store.error instanceof Refused && [401, 403].includes(store.error.status);
    if (refused) return html`<${Enter} error=${store.error} />`;
    const [view, argument] = place();
    const [, title, View] = VIEWS.find(([id]) => id === view);
    const focus = useRef(null);
    useKeys();
    useEffect(() => {
        document.title = `${title} · Warmroute`;
    }, [view]);
    return html`<header class="top">
      <button class="skip" onClick=${() => focus.current?.focus()}>Skip to ${title}</button>
      <div class="brand"><img src="page/icon.svg" alt="" width="18" height="18" /><strong>Warmroute</strong><${Connection} store=${store} /></div>
      <${Verdicts} store=${store} />
      <${Now} store=${store} />
    </header>
    <nav class="views" aria-label="Views">
      ${views().map(([id, name], n) => html`<a href="#${id}" aria-current=${id === view ? "page" : null} title=${`key ${n + 1}`}>${name}</a>`)}
    </nav>
    <main ref=${focus} tabindex="-1" class=${store.connection === "lost" ? "stale" : ""}>
      <h1 class="hidden">${title}</h1>
      ${store.now === null ? html`<p class="faint">Waiting for the first picture …</p>` : html`<${View} store=${store} argument=${argument} />`}
    </main>
    <${Dialogs} store=${store} />`;
}

/** Digits choose a view, / goes to the search. */
function useKeys() {
    useEffect(() => {
        const onKey = (event) => {
            if (
                event.ctrlKey ||
                event.metaKey ||
                event.altKey ||
                /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)
            )
                return;
            if (document.querySelector("dialog[open]")) return;
            const view = views()[Number(event.key) - 1];
            if (view) location.hash = view[0];
            else if (event.key === "/") {
                event.preventDefault();
                location.hash = "request";
                document.getElementById("find")?.focus();
            }
        };
        document.addEventListener("keydown", onKey);
        return () => document.removeEventListener("keydown", onKey);
    }, []);
}

function Connection({ store }) {
    const lost = store.connection === "lost";
    const text = lost
        ? `no connection since ${timeOf(store.lostAt ?? Date.now() / 1000)}`
        : store.now === null
          ? "connecting"
          : timeOf(store.now);
    return html`<span class="connection ${lost ? "bad" : ""}">
    <span role="status" class=${lost ? "" : "hidden"}>${lost ? text : "connected"}</span>
    ${lost ? "" : html`<time>${text}</time>`}
    ${token() ? html`<button class="link" onClick=${leave}>sign out</button>` : ""}
  </span>`;
}

function leave() {
    setToken("");
    store.clear();
    connect();
}

const SIGN = { ok: "●", off: "○", warn: "▲", bad: "■" };
const MEANING = { ok: "good", off: "not used", warn: "attention", bad: "trouble" };

function Verdicts({ store }) {
    return html`<ul class="verdicts" aria-label="Problems">
    ${verdicts(store).map(
        ({ name, view, level, text }) => html`<li><a href="#${view}" class="verdict ${level}" title=${text}>
        <span class="sign" aria-hidden="true">${SIGN[level]}</span><strong>${name}</strong><span class="hidden">${MEANING[level]}:</span>
        <span class="text">${text}</span></a></li>`,
    )}
  </ul>`;
}

/** What is going on now, each figure with its course over the last minutes. */
function Now({ store }) {
    const { t, sums } = overTime(store, null, 15);
    const minute = lastSeconds(store, 60);
    const seconds = Math.min(60, store.now - (store.flowSince ?? store.now));
    const cells = [...store.targets.values()];
    const inFlight = cells.length ? cells.reduce((sum, cell) => sum + (cell.requests ?? 0), 0) : null;
    const rate = minute && seconds > 0 ? minute.placed / seconds : null;
    const of = (value) => sums.map(value);
    const part = (a, b) => (b ? a / b : null);
    const link = (text, show) => html`<a href="#request/?show=${show}&last_s=300">${text}</a>`;
    const figures = [
        ["requests / s", rate === null ? "–" : rate.toFixed(rate < 10 ? 1 : 0), of((s) => s.placed / 15)],
        ["in flight now", count(inFlight), null],
        ["TTFT p50", duration(minute && quantile(minute.ttft, 0.5)), of((s) => quantile(s.ttft, 0.5))],
        ["TTFT p99", link(duration(minute && quantile(minute.ttft, 0.99)), "slowest_first_token"), of((s) => quantile(s.ttft, 0.99))],
        ["cache hits", share(minute && part(minute.delivered, minute.prompt)), of((s) => part(s.delivered, s.prompt))],
        ["failed", minute?.ended ? link(share(minute.failed / minute.ended), "failed") : "–", of((s) => part(s.failed, s.ended))],
    ];
    return html`<dl class="now" aria-label="Last minute"><div class="window"><dt>Last minute</dt><dd><small>lines: 15 min</small></dd></div>
    ${figures.map(([name, value, course]) => html`<div><dt>${name}</dt><dd>${value}</dd>${course && course.length > 1 ? html`<${Spark} t=${t} values=${course} />` : ""}</div>`)}
  </dl>`;
}

function Enter({ error }) {
    const [text, setText] = useState("");
    const enter = (event) => {
        event.preventDefault();
        setToken(text.trim());
        store.error = null;
        connect();
        draw();
    };
    return html`<main class="alone"><h1>Warmroute</h1>
    <form onSubmit=${enter}>
      <label for="token">Admin token</label>
      <input id="token" type="password" autocomplete="off" autofocus required value=${text} onInput=${(e) => setText(e.target.value)} />
      <button class="primary">Enter</button>
      <p class="faint">Kept for this tab only. It needs the right “read”; with “write” the page offers actions.</p>
      ${token() ? html`<p role="alert" class="error">${error.message}</p>` : ""}
    </form></main>`;
}

addEventListener("hashchange", draw);
connect();
draw();
