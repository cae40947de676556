// The picture as the page knows it: the feed's full picture with all changes since, and what follows from it.

import { sharedEnds } from "./name.js";

const KEPT_POINTS = 900; // of each target's history, one per picture
const TRIM = 300;
const FLOW_FIELDS = ["start", "lane", "placed", "ended", "failed", "blind", "returning", "stayed", "prompt", "delivered",
  "promisedPrompt", "predicted", "compared", "pool", "ttft", "own"]; // prettier-ignore
const TARGET_FIELDS = [
    "target",
    "lane",
    "placed",
    "failed",
    "prompt",
    "delivered",
    "promisedPrompt",
    "predicted",
    "compared",
];

export class Store {
    constructor() {
        this.connection = "connecting";
        this.error = null;
        this.rights = [];
        this.clear();
    }

    clear() {
        this.now = null;
        this.router = null;
        this.targets = new Map();
        this.ends = sharedEnds([]);
        this.buckets = new Map();
        this.flowTargets = [];
        this.flowSince = null;
        this.marks = [];
        this.history = new Map();
        this.run = null;
    }

    get may() {
        return this.rights.includes("write");
    }

    /** Apply one event of the feed. */
    apply(name, data) {
        if (name === "hello") this.rights = data.rights;
        else if (name === "full") this.applyFull(data);
        else if (name === "delta") this.applyDelta(data);
    }

    applyFull(data) {
        if (this.run !== null && this.run !== data.router.run) this.clear(); // another process: its books are empty
        this.run = data.router.run;
        this.now = data.now;
        this.bucketS = data.bucket_s;
        this.windowS = data.window_s;
        this.router = data.router;
        this.targets = new Map(Object.entries(data.targets));
        this.ends = sharedEnds([...this.targets.keys()]);
        this.buckets = new Map();
        this.applyFlow(data.flow);
        this.marks = data.marks;
        this.remember();
    }

    applyDelta(data) {
        this.now = data.now;
        if (data.router) this.router = { ...this.router, ...data.router };
        const known = this.targets.size;
        let moved = false;
        for (const [id, change] of Object.entries(data.targets ?? {})) {
            if (change === null) moved = this.targets.delete(id) || moved;
            else this.targets.set(id, { ...this.targets.get(id), ...change });
        }
        if (moved || this.targets.size !== known) this.ends = sharedEnds([...this.targets.keys()]);
        this.applyFlow(data.flow);
        if (data.marks) this.marks = [...this.marks, ...data.marks].slice(-200);
        this.remember();
    }

    applyFlow(flow) {
        this.flowSince = flow.since;
        for (const values of flow.buckets) {
            const bucket = named(FLOW_FIELDS, values);
            this.buckets.set(`${bucket.start} ${bucket.lane}`, bucket);
        }
        const oldest = this.now - this.windowS;
        for (const [key, bucket] of this.buckets) if (bucket.start < oldest) this.buckets.delete(key);
        if (flow.targets) this.flowTargets = flow.targets.map((values) => named(TARGET_FIELDS, values));
    }

    /** Keep a point of each target's history, for as long as this page is open. */
    remember() {
        for (const [id, cell] of this.targets) {
            let kept = this.history.get(id);
            if (!kept)
                this.history.set(id, (kept = { t: [], requests: [], waiting: [], queued: [], live: [], held: [] }));
            kept.t.push(this.now);
            kept.requests.push(cell.requests ?? null);
            kept.waiting.push(cell.waiting ?? null);
            kept.queued.push(cell.queued_ms ?? null);
            kept.live.push(cell.live ?? null);
            kept.held.push(cell.held ?? null);
            if (kept.t.length > KEPT_POINTS + TRIM) for (const list of Object.values(kept)) list.splice(0, TRIM);
        }
        for (const id of this.history.keys()) if (!this.targets.has(id)) this.history.delete(id);
    }
}

const named = (names, values) => Object.fromEntries(names.map((name, i) => [name, values[i]]));
