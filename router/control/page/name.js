// Names of targets where there is little room: what all of them share gives way, what tells them apart stays.

import { html } from "./lib.js";

const TAIL = 6; // characters of a long name's own part that stay to the last
const LONG = 10;
const NONE = { head: 0, tail: 0 };

/** How many characters of the beginning and of the end all names share, up to a separator. */
export function sharedEnds(list) {
    if (list.length < 2) return NONE;
    const [first] = list;
    const least = Math.min(...list.map((name) => name.length));
    let head = 0;
    while (head < least && list.every((name) => name[head] === first[head])) head++;
    head = first.slice(0, head).search(/[-._:/][^-._:/]*$/) + 1;
    let tail = 0;
    while (tail < least - head && list.every((name) => name.at(-1 - tail) === first.at(-1 - tail))) tail++;
    const from = first.slice(first.length - tail).search(/[-._:/]/);
    return { head, tail: from < 0 ? 0 : tail - from };
}

const split = (text, { head, tail }) => [
    text.slice(0, head),
    text.slice(head, text.length - tail),
    text.slice(text.length - tail),
];

/** A name that fits where it stands. Its text is whole, for searching, copying and screen readers. */
export function Name({ text, ends = NONE }) {
    const [head, own, tail] = split(text, ends);
    const kept = own.length > LONG ? own.slice(-TAIL) : "";
    return html`<span class="name" title=${text}>${head ? html`<span class="shared">${head}</span>` : ""}<span class="own">${own.slice(0, own.length - kept.length)}</span>${kept ? html`<span class="kept">${kept}</span>` : ""}${tail ? html`<span class="shared">${tail}</span>` : ""}</span>`;
}

/** A name in at most `most` characters. */
export function briefName(text, ends = NONE, most) {
    if (text.length <= most) return text;
    const [head, own, tail] = split(text, ends);
    const left = most - (head ? 1 : 0) - (tail ? 1 : 0);
    const middle = own.length <= left ? own : `${own.slice(0, left - 1 - TAIL)}…${own.slice(-TAIL)}`;
    return `${head ? "…" : ""}${middle}${tail ? "…" : ""}`;
}
