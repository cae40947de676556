// Sums over the flow's buckets: rates, shares and quantiles by lane and time.

const BINS_PER_E = 8; // as in router/telemetry/request_flow.py

const SUMMED = [
    "placed",
    "ended",
    "failed",
    "blind",
    "returning",
    "stayed",
    "prompt",
    "delivered",
    "promisedPrompt",
    "predicted",
    "compared",
    "pool",
];

const emptySum = () => ({ ...Object.fromEntries(SUMMED.map((name) => [name, 0])), ttft: new Map(), own: new Map() });

export function add(sum, bucket) {
    for (const name of SUMMED) sum[name] += bucket[name];
    for (const bins of ["ttft", "own"])
        for (const [bin, n] of Object.entries(bucket[bins])) sum[bins].set(+bin, (sum[bins].get(+bin) ?? 0) + n);
    return sum;
}

/** All requests that arrived in the last `seconds` whole buckets; null before there are any. */
export function lastSeconds(store, seconds, lane = null) {
    if (store.now === null) return null;
    const from = store.now - seconds;
    const sum = emptySum();
    for (const bucket of store.buckets.values())
        if (bucket.start >= from && (lane === null || bucket.lane === lane)) add(sum, bucket);
    return sum;
}

/** The `q` quantile in ms of a map from bins to counts; null without any. The middle of its bin, which is 13 % wide. */
export function quantile(bins, q) {
    const sorted = [...bins].sort((a, b) => a[0] - b[0]);
    const total = sorted.reduce((sum, [, n]) => sum + n, 0);
    if (total === 0) return null;
    let seen = 0;
    for (const [bin, n] of sorted) {
        seen += n;
        if (seen >= q * total) return Math.exp((bin + 0.5) / BINS_PER_E);
    }
    return null;
}

/** Sums by time for one lane or all, oldest first: {t: [...], sums: [...]}. `step` is a multiple of the bucket. */
export function overTime(store, lane = null, step = store.bucketS) {
    if (store.now === null) return { t: [], sums: [] };
    const last = Math.floor(store.now / step) * step;
    const first = Math.max(Math.floor((store.flowSince ?? store.now) / step) * step, last - store.windowS);
    const sums = new Map();
    for (let t = first; t < last; t += step) sums.set(t, emptySum());
    for (const bucket of store.buckets.values()) {
        const sum = sums.get(Math.floor(bucket.start / step) * step);
        if (sum && (lane === null || bucket.lane === lane)) add(sum, bucket);
    }
    return { t: [...sums.keys()], sums: [...sums.values()] };
}

/** The lanes with requests in the window, busiest first. */
export function lanes(store) {
    const placed = new Map();
    for (const bucket of store.buckets.values())
        placed.set(bucket.lane, (placed.get(bucket.lane) ?? 0) + bucket.placed);
    return [...placed].sort((a, b) => b[1] - a[1]).map(([lane]) => lane);
}

/** Sums over the rows of each target, by target, of the last 5 minutes. */
export function flowByTarget(rows) {
    const found = new Map();
    for (const row of rows) {
        const sum = found.get(row.target) ?? {
            placed: 0,
            failed: 0,
            prompt: 0,
            delivered: 0,
            promisedPrompt: 0,
            predicted: 0,
            compared: 0,
        };
        for (const name of Object.keys(sum)) sum[name] += row[name];
        found.set(row.target, sum);
    }
    return found;
}
