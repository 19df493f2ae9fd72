// Pieces that several panels are made of.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ask, NotHere } from "./api.js";
import { bytes, percent, visible } from "./text.js";

/** A name of a file, always from left to right, with nothing hidden in it. */
export function Name({ text, className = "" }) {
  return html`<bdi dir="ltr" class=${"name " + className}>${broken(visible(text))}</bdi>`;
}

const TAIL = 10; // characters of a name that stay when its middle gives way

/** A name of a tensor in a row, which on a phone gives way in its middle and leaves out the ending that most have. */
export function NameInRow({ text }) {
  const [, stem, ending] = visible(text).match(/^(.*?)(\.weight)?$/), letters = [...stem];
  return html`<bdi dir="ltr" class="name ends"><span>${letters.slice(0, -TAIL).join("")}</span><span>${letters.slice(-TAIL).join("")}</span>${ending && html`<span class="whole">${ending}</span>`}</bdi>`;
}

/** A short text that breaks at its dots, underscores and capitals before it breaks within a word. */
export function broken(text) {
  if (text.length > 200) return text;
  return text.split(/(?<=[._/])(?=[A-Za-z]{3})|(?<=[a-z])(?=[A-Z][a-z]{2})/).flatMap((piece, i) => (i > 0 ? [html`<wbr />`, piece] : [piece]));
}

/** `1.23 MB` with the unit set apart, so that numbers in a column are below one another. */
export function Amount({ text }) {
  const at = text.lastIndexOf(" ");
  return at < 0 ? html`${text}<span class="unit"></span>` : html`${text.slice(0, at)} <span class="unit">${text.slice(at + 1)}</span>`;
}

/** Where there is nothing to show, and why. */
export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

/** What is wrong, with the next step. */
export function Problem({ error, hint }) {
  return html`<div class="problem" role="alert"><b>${visible(error)}</b>${hint && html`<br/>${visible(hint)}`}</div>`;
}

/** The answer to a question: {data, error, progress}. An unmounted or changed question is aborted. */
export function useAnswer(name, given, wanted = true) {
  const [state, setState] = useState({});
  const question = JSON.stringify([name, given, wanted]);
  useEffect(() => {
    if (!wanted) return setState({});
    const abort = new AbortController();
    const set = (next) => abort.signal.aborted || setState(next);
    setState({ waiting: true });
    ask(name, given, { signal: abort.signal, progress: (done, total) => set({ waiting: true, progress: [done, total] }) })
      .then((data) => set({ data }), (error) => set({ error }));
    return () => abort.abort();
  }, [question]);
  return state;
}

/** What stands where an answer will: progress, an error with its next step, or nothing to show. */
export function Waiting({ state, what = "Reading" }) {
  const { error, progress } = state;
  if (error instanceof NotHere) return html`<p class="quiet">${error.message} Open the model with <code>wb view</code> to see it.</p>`;
  if (error) return html`<${Problem} error=${error.message} hint=${error.hint} />`;
  const [done, total] = progress ?? [0, 0];
  return html`<p class="waiting" role="status">${what} …
    ${total > 0 && html` <progress aria-label=${what} value=${done} max=${total}></progress> ${percent(done / total)}`}</p>`;
}

/** A question's answer given to `children`, a function of it. */
export function Answer({ name, given, what, children }) {
  const state = useAnswer(name, given);
  return state.data === undefined ? html`<${Waiting} state=${state} what=${what} />` : children(state.data);
}

export function Section({ title, note, children, className = "" }) {
  return html`<section class=${"card " + className}>
    ${title && html`<h2>${title}${note && html`<small>${note}</small>`}</h2>`}${children}</section>`;
}

/** One bar of shares with its legend: [{name, nbytes, color}]. */
export function StackedBar({ label, rows, total, detail }) {
  const sum = total || rows.reduce((s, r) => s + r.nbytes, 0) || 1;
  return html`<figure class="stack">
    <div class="strip" role="img" aria-label=${`${label}: ${rows.map((r) => `${r.name} ${percent(r.nbytes / sum)}`).join(", ")}`}>
      ${rows.map((r) => html`<span style=${{ flexGrow: r.nbytes / sum, background: r.color }} title=${`${r.name}: ${bytes(r.nbytes)}, ${percent(r.nbytes / sum)}`}></span>`)}
    </div>
    <div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="legend"><thead class="hidden"><tr><th>${label}</th><th>bytes</th><th>share</th>${detail && html`<th>detail</th>`}</tr></thead><tbody>
      ${rows.map((r) => html`<tr><th scope="row"><i style=${{ background: r.color }}></i><${Name} text=${r.name} /></th>
        <td><${Amount} text=${bytes(r.nbytes)} /></td><td><${Amount} text=${percent(r.nbytes / sum)} /></td>${detail && html`<td class="quiet">${detail(r)}</td>`}</tr>`)}
    </tbody></table></div></figure>`;
}

/** Names and values, one under the other; with a third element over the whole width. */
export function Facts({ rows }) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "");
  return html`<dl class="facts">${shown.map(([name, value, wide]) => html`<div class=${wide ? "wide" : ""}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** The names of two models with their letters, as heads of a table. */
export const headsOf = (models) => models.map((m, i) => html`<b>${"AB"[i]}</b> <${Name} text=${m.name} />`);

export function Chip({ kind = "", children }) {
  return html`<span class=${"chip " + kind}>${children}</span>`;
}

/** Copies a text; says so for a moment. */
export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      return;
    }
    setDone(true);
    setTimeout(() => setDone(false), 1200);
  };
  return html`<button type="button" class="small" onClick=${copy} aria-live="polite">${done ? "Copied" : label}</button>`;
}

/** Two texts line beside line, [{a, b, same}]; lines that differ are marked, also for who sees no colours. */
export function SideBySide({ rows, label, heads = ["A", "B"] }) {
  const line = (text, same) => html`<td class=${same ? "" : "differs"}>${!same && html`<span class="hidden">differs: </span>`}${text === null ? "" : text.split("\n").map((part, i) => html`${i > 0 && html`<span class="quiet">↵</span>`}${visible(part)}`)}</td>`;
  return html`<div class="scroll tall" tabindex="0" role="region" aria-label=${label}><table class="pair"><thead><tr>${heads.map((head) => html`<th>${head}</th>`)}</tr></thead><tbody>
    ${rows.map((r) => html`<tr>${line(r.a, r.same)}${line(r.b, r.same)}</tr>`)}</tbody></table></div>`;
}

/** One of a few choices, as buttons side by side. */
export function Choice({ label, options, value, onChange }) {
  const box = useInSight("[aria-pressed=true]", value);
  return html`<div class="choice" role="group" aria-label=${label} ref=${box}>
    ${options.map(([key, text]) => html`<button type="button" aria-pressed=${String(key === value)} onClick=${() => onChange(key)}>${text}</button>`)}</div>`;
}

/** A box that is scrolled sideways to what is chosen in it. */
export function useInSight(chosen, value, margin = 8) {
  const box = useRef(null);
  useEffect(() => {
    const area = box.current.getBoundingClientRect(), found = box.current.querySelector(chosen)?.getBoundingClientRect();
    if (found) box.current.scrollLeft += Math.max(found.right - area.right + margin, 0) + Math.min(found.left - area.left - margin, 0);
  }, [value]);
  return box;
}

/** The size of an element in CSS pixels, as it changes. */
export function useSize() {
  const ref = useRef(null);
  const [size, setSize] = useState([0, 0]);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setSize([Math.floor(entry.contentRect.width), Math.floor(entry.contentRect.height)]));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, size];
}

/** The rows of a long list that are in sight. An element's height is bounded in every browser, so a very long list
 * scrolls faster than its rows. */
export function useWindow(total, rowHeight) {
  const ref = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const full = Math.min(total * rowHeight, 8_000_000);
  const reach = Math.max(full - view.height, 1);
  const ratio = Math.max(total * rowHeight - view.height, 0) / reach;
  const first = Math.max(0, Math.floor(view.top * ratio / rowHeight) - 4);
  const last = Math.min(total, first + Math.ceil(view.height / rowHeight) + 9);
  useEffect(() => {
    const box = ref.current;
    const read = () => setView({ top: box.scrollTop, height: box.clientHeight || 600 });
    box.addEventListener("scroll", read, { passive: true });
    const observer = new ResizeObserver(read);
    observer.observe(box);
    return () => (box.removeEventListener("scroll", read), observer.disconnect());
  }, []);
  const show = (row) => {
    const box = ref.current, at = row * rowHeight / (ratio || 1);
    if (at < box.scrollTop) box.scrollTop = at;
    else if (at + rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = at + rowHeight - box.clientHeight;
  };
  return { ref, first, last, full, top: view.top - (view.top * ratio - first * rowHeight), show };
}
