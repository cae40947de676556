// Small drawings: sparklines and bars.

import { html, useEffect, useState } from "./lib.js";

const NARROW = matchMedia("(max-width: 520px)"); // as in the style sheet

/** Whether the window is as narrow as a phone's. */
export function useNarrow() {
    const [narrow, setNarrow] = useState(NARROW.matches);
    useEffect(() => {
        const onChange = () => setNarrow(NARROW.matches);
        NARROW.addEventListener("change", onChange);
        return () => NARROW.removeEventListener("change", onChange);
    }, []);
    return narrow;
}

const CATEGORIES = ["--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];

/** The colour of the `i`th of several things that are neither the router's nor the engines'. */
export const categoryColor = (i) => CATEGORIES[i % CATEGORIES.length];

/** The course of a value; where it is unknown the line is broken. */
export function Spark({ t, values, width = 66, height = 18 }) {
    const known = values.filter((v) => v !== null);
    if (known.length < 2) return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"></svg>`;
    const top = Math.max(...known);
    const from = t[0];
    const span = t[t.length - 1] - from || 1;
    let path = "";
    let pen = false;
    values.forEach((v, i) => {
        if (v === null) {
            pen = false;
            return;
        }
        const x = ((t[i] - from) / span) * (width - 2) + 1;
        const y = height - 1.5 - (top ? (v / top) * (height - 3) : 0);
        path += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
        pen = true;
    });
    return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"><path d=${path} /></svg>`;
}

/** A bar of parts of a whole: `parts` are {name, value, kind}, drawn as shares of `whole`. */
export function Bar({ parts, whole, title }) {
    let x = 0;
    return html`<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label=${title}>
    <rect class="track" width="100" height="6" />
    ${parts.map(({ value, kind }) => {
        const width = whole ? Math.min(100 - x, (100 * Math.max(0, value)) / whole) : 0;
        const drawn = html`<rect class=${kind} x=${x} width=${width} height="6" />`;
        x += width;
        return drawn;
    })}
  </svg>`;
}
