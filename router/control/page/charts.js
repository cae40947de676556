// Charts over time or over size, by uPlot, with moments marked. Colours come from the style sheet.

import uPlot from "./vendor/uplot.js";
import { html, useLayoutEffect, useRef } from "./lib.js";
import { timeOf } from "./format.js";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * A chart. `series`: [{label, color, values, points}], `color` a style sheet variable; `t`: x values. `marks`: [{at, label, kind}],
 * drawn where x is time. `format` writes a y value, `x` is {time, label, format}. `title` names it for screen readers.
 */
export function Chart({ t, series, marks = [], format = String, x = { time: true }, height = 150, title, range }) {
    const box = useRef(null);
    const plot = useRef(null);
    const shown = useRef({ marks, format });
    shown.current = { marks, format };
    const shape = JSON.stringify(series.map((s) => s.label));

    useLayoutEffect(() => {
        const element = box.current;
        const made = new uPlot(options(series, x, height, element.clientWidth, shown, range), data(t, series), element);
        plot.current = made;
        const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
        watch.observe(element);
        const dark = matchMedia("(prefers-color-scheme: dark)");
        const recolor = () => made.redraw(false, true);
        dark.addEventListener("change", recolor);
        return () => {
            watch.disconnect();
            dark.removeEventListener("change", recolor);
            made.destroy();
            plot.current = null;
        };
    }, [shape, height]);

    useLayoutEffect(() => plot.current?.setData(data(t, series)));
    return html`<figure class="chart"><figcaption>${title}</figcaption><div ref=${box} role="img" aria-label=${title}></div></figure>`;
}

const data = (t, series) => [t, ...series.map((s) => s.values)];

function options(series, x, height, width, shown, range) {
    const axis = {
        stroke: () => style("--faint"),
        grid: { stroke: () => style("--line"), width: 1 },
        ticks: { show: false },
        font: "11px system-ui",
    };
    // With less than a minute between two ticks, minutes alone would repeat.
    const time = (u, ticks) => ticks.map((s) => (ticks[1] - ticks[0] < 60 ? timeOf(s) : timeOf(s).slice(0, 5)));
    const last = (values) => values.findLast((v) => v !== null) ?? null;
    return {
        width,
        height,
        padding: [10, 26, 0, 0],
        cursor: { y: false, points: { size: 6 } },
        legend: { live: true },
        scales: { x: { time: x.time }, y: { range: range ?? ((u, low, high) => [0, high > 0 ? high * 1.08 : 1]) } },
        axes: [
            { ...axis, size: 24, space: 76, values: x.time ? time : (u, ticks) => ticks.map(x.format) },
            { ...axis, size: 58, values: (u, ticks) => ticks.map((v) => shown.current.format(v)) },
        ],
        series: [
            {
                label: x.label ?? "time",
                value: (u, v) => (v === null ? (x.time ? "now" : "–") : x.time ? timeOf(v) : x.format(v)),
            },
            ...series.map((s) => ({
                label: s.label,
                stroke: () => style(s.color),
                width: 1.5,
                dash: s.dash,
                spanGaps: false,
                // Without a cursor: the last value.
                value: (u, v, i, at) => shown.current.format(at === null && x.time ? last(u.data[i]) : v),
                ...(s.points
                    ? {
                          paths: () => null,
                          points: { show: true, size: 5, fill: () => style(s.color), stroke: () => style(s.color) },
                      }
                    : { points: { show: false } }),
            })),
        ],
        hooks: { draw: [(u) => x.time && drawMarks(u, shown.current.marks)] },
    };
}

/** Colours of marks by kind; a letter beside the line tells them apart without colour. */
export const MARK_SIGN = { switch: "S", rollback: "R", alarm: "A", start: "↑", join: "+", leave: "−", state: "·" };

const markColor = (kind) =>
    kind === "rollback" || kind === "alarm" ? "--bad" : kind === "leave" ? "--warn" : "--mark";

function drawMarks(u, marks) {
    const { ctx } = u;
    ctx.save();
    ctx.font = `${10 * devicePixelRatio}px system-ui`;
    ctx.textAlign = "center";
    for (const mark of marks) {
        if (mark.at < u.scales.x.min || mark.at > u.scales.x.max) continue;
        const at = Math.round(u.valToPos(mark.at, "x", true));
        ctx.strokeStyle = ctx.fillStyle = style(markColor(mark.kind));
        ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
        ctx.lineWidth = devicePixelRatio;
        ctx.beginPath();
        ctx.moveTo(at, u.bbox.top);
        ctx.lineTo(at, u.bbox.top + u.bbox.height);
        ctx.stroke();
        ctx.fillText(MARK_SIGN[mark.kind] ?? "·", at, u.bbox.top - 1);
    }
    ctx.restore();
}
