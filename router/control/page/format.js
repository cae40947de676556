// Numbers, times and shares as text. What is unknown is a dash, never 0.

const UNKNOWN = "–";

const unknown = (value) => value === null || value === undefined || Number.isNaN(value);
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A whole number, with digits grouped. */
export const count = (value) => (unknown(value) ? UNKNOWN : grouped.format(value));

/** A number with three significant digits at most: 0.42, 4.2, 42, 4,200. */
export function amount(value) {
    if (unknown(value)) return UNKNOWN;
    const size = Math.abs(value);
    if (size !== 0 && size < 0.01) return value.toExponential(1);
    return size >= 100 ? grouped.format(value) : String(Number(value.toPrecision(size >= 10 ? 3 : 2)));
}

/** Milliseconds, as µs, ms, s or min. */
export function duration(ms) {
    if (unknown(ms)) return UNKNOWN;
    const size = Math.abs(ms);
    if (size !== 0 && size < 0.1) return `${amount(ms * 1000)} µs`;
    if (size < 1000) return `${amount(ms)} ms`;
    if (size < 120000) return `${amount(ms / 1000)} s`;
    return `${amount(ms / 60000)} min`;
}

/** A share of 1 as per cent. */
export const share = (value) =>
    unknown(value) ? UNKNOWN : `${(100 * value).toFixed(value > 0 && value < 0.0995 ? 1 : 0)} %`;

/** Tokens, short: 820, 12k, 1.4M. */
export function tokens(value) {
    if (unknown(value)) return UNKNOWN;
    if (value < 1000) return String(Math.round(value));
    return value < 999500 ? `${amount(value / 1000)}k` : `${amount(value / 1e6)}M`;
}

/** A part of a whole; null where either is unknown or the whole is nothing. */
export const ratio = (part, whole) => (unknown(part) || unknown(whole) || whole === 0 ? null : part / whole);

const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const moment = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

/** The time of day of a wall clock time in seconds, in the viewer's zone. */
export const timeOf = (s) => (unknown(s) ? UNKNOWN : clock.format(s * 1000));

/** Date and time in the viewer's zone. */
export const momentOf = (s) => (unknown(s) ? UNKNOWN : moment.format(s * 1000));

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** A list of names, cut after a few. */
export function names(list, most = 3) {
    const rest = list.length - most;
    return rest > 0 ? `${list.slice(0, most).join(", ")} and ${rest} more` : list.join(", ");
}

/** What the KV memory of a target holds. */
export function memoryText({ live, held, capacity }) {
    if (!capacity) return "KV memory: size unknown";
    const cached = held === null ? "unknown" : `${tokens(Math.max(0, held - (live ?? 0)))}`;
    const free = held === null ? "unknown" : tokens(Math.max(0, capacity - Math.max(held, live ?? 0)));
    return `KV memory of ${tokens(capacity)} tokens: ${tokens(live)} live, ${cached} cached, ${free} free`;
}
