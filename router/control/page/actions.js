// Actions: the plan first, then the confirmation. The router answers a dry run with what would happen.

import { html, useEffect, useRef, useState } from "./lib.js";

let show = () => {};

/** Ask for confirmation of {title, plan, act}: `plan()` resolves to sentences, or throws what forbids the action; `act()` does it. */
export const confirmAction = (action) => show(action);

/** Sentences of a switch's dry run. */
export function planOf(answer) {
    const notes = answer.notes ?? [];
    const sentences = answer.plan?.sentences ?? [];
    if (!answer.changed && !notes.length) return ["Nothing would change."];
    return [...(sentences.length ? sentences : ["No recent request would have been decided otherwise."]), ...notes];
}

export function Dialogs() {
    const [action, setAction] = useState(null);
    useEffect(() => {
        show = setAction;
        return () => (show = () => {});
    }, []);
    return action ? html`<${Confirm} key=${action.title} action=${action} close=${() => setAction(null)} />` : "";
}

function Confirm({ action, close }) {
    const dialog = useRef(null);
    const [plan, setPlan] = useState(null);
    const [error, setError] = useState(null);
    const [busy, setBusy] = useState(false);
    useEffect(() => {
        dialog.current.showModal();
        action.plan().then(setPlan, setError);
    }, []);
    const act = async () => {
        setBusy(true);
        try {
            await action.act();
            close();
        } catch (problem) {
            setError(problem);
            setBusy(false);
        }
    };
    return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="dialog-title">
    <h2 id="dialog-title">${action.title}</h2>
    ${plan === null && !error ? html`<p class="faint">Requesting the plan …</p>` : ""}
    ${plan ? html`<ul class="plan">${plan.map((sentence) => html`<li>${sentence}</li>`)}</ul>` : ""}
    ${error ? html`<p role="alert" class="error">${error.message}</p>` : ""}
    <p class="buttons"><button onClick=${() => dialog.current.close()}>Cancel</button>
      <button class="primary" disabled=${!plan || busy || error} onClick=${act}>${action.title}</button></p>
  </dialog>`;
}
