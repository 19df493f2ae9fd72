// The verdict on top of every panel: banners of what is wrong, and one line that answers what the model is, whether it
// is whole, safe, loadable, and fits this machine. The server judges; this draws.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { ask, holds, NotHere } from "./api.js";
import { bytes, message, visible } from "./text.js";
import { Name } from "./ui.js";

/** Marks that can be told apart without colours. */
const MARKS = { danger: "✕", error: "✕", unproven: "!", warning: "!", info: "i", unchecked: "?", ok: "✓" };
const WORDS = { danger: "dangerous", error: "error", unproven: "not proven", warning: "warning", info: "note", unchecked: "not checked", ok: "good" };

/** The verdict on each model, [{data, error}], once `shown` is kept; first on those of `sides`. */
export function useVerdicts(models, shown, sides) {
  const [verdicts, setVerdicts] = useState([]);
  useEffect(() => {
    if (!models) return;
    const set = (model, state) => setVerdicts((old) => Object.assign([...old], { [model]: state }));
    shown.then(async () => {
      for (const real of new Set([...sides, ...models.keys()])) await ask("findings", { real }).then((data) => set(real, { data }), (error) => set(real, { error }));
    });
  }, [models]);
  return verdicts;
}

export function Verdicts({ models, verdicts, go }) {
  return html`<section class="verdict" aria-label="Verdict">
    ${models.map((info, m) => html`<${Banners} info=${info} state=${verdicts[m]} open=${(step) => go({ ...stepPlace(step), model: m })} />`)}
    ${models.map((info, m) => html`<${Line} info=${info} letter=${models.length > 1 ? "AB"[m] : ""} state=${verdicts[m]} />`)}</section>`;
}

/** The place of a judged step of a pickle. */
export const stepPlace = ({ file, member, number }) => ({ panel: "microscope", mode: "pickle", file, member, step: number, tensor: undefined, at: undefined });

export const canOpen = (step) => step && step.file !== null && step.file !== undefined && holds("pickle");

/** What failed to open is shown until the verdict, which has the same error, has come. */
function Banners({ info, state, open }) {
  if (!state?.data) {
    return info.damage && html`<${Banner} banner=${{ level: "error", text: info.damage.error, detail: info.damage.hint ?? "" }} />`;
  }
  return state.data.banners.map((banner) => html`<${Banner} banner=${banner} open=${open} />`);
}

function Banner({ banner: { level, text, detail, step }, open }) {
  return html`<div class=${"banner " + level} role="alert"><${Mark} level=${level} />
    <div><b>${quoted(text)}</b>${detail && html`<p>${message(detail)}</p>`}</div>
    ${canOpen(step) && html`<button type="button" onClick=${() => open(step)}>Show step ${step.number}</button>`}</div>`;
}

/** A text whose `code` is set as code. */
function quoted(text) {
  return text.split("`").map((piece, i) => (i % 2 ? html`<${Name} text=${piece} />` : message(piece)));
}

export function Mark({ level }) {
  return html`<i class=${"mark " + level} aria-hidden="true">${MARKS[level]}</i><span class="hidden">${WORDS[level]}: </span>`;
}

function Line({ letter, state }) {
  const label = letter ? `Verdict on ${letter}` : "Verdict";
  if (!state) return html`<p class="answers quiet" role="status">${letter} Checking whether it is whole, safe and fits …</p>`;
  if (state.error) {
    return html`<p class="answers quiet">${letter} Not checked: ${state.error instanceof NotHere ? "an exported page without checks." : visible(state.error.message)}</p>`;
  }
  return html`<ul class="answers" aria-label=${label}>${letter && html`<li class="letter">${letter}</li>`}
    ${state.data.answers.map(({ question, level, text, nbytes, why }) => html`<li class=${level} title=${why || question}><${Mark} level=${level} /><span class="hidden">${question}: </span><span>${unbroken(visible(filled(text, nbytes)))}</span>${why && html`<span class="hidden">: ${visible(why)}</span>`}</li>`)}</ul>`;
}

/** A text whose options, as `--imatrix`, stay on one line. */
const unbroken = (text) => text.split(/(--[\w-]+)/).map((piece, i) => (i % 2 ? html`<span class="option">${piece}</span>` : piece));

/** `{needs} needed` with the size of that name. */
const filled = (text, nbytes) => text.replace(/\{(\w+)\}/g, (_, name) => bytes(nbytes[name]));
