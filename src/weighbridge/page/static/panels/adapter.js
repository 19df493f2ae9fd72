// What an adapter changes: each matrix with its rank, and how large the change is.
import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { fixed, number, percent, plural, shape, visible, whole } from "../text.js";
import { Choice, Facts, Name, Section, useAnswer, Waiting } from "../ui.js";

export function Adapter({ models }) {
  return models.map((info, model) => info.adapter && html`<${Changes} key=${model} model=${model} info=${info} />`);
}

function Changes({ model, info }) {
  const state = useAnswer("adapter", { model });
  if (!state.data) return html`<${Section} title="Adapter"><${Waiting} state=${state} what="Reading the changes" /><//>`;
  const { facts, alpha, changes, whole: replaced, dora } = state.data;
  const ranks = [...new Set(changes.map((c) => c.rank))].sort((a, b) => a - b);
  return html`<${Section} title=${html`<span>Adapter <${Name} text=${info.name} /></span>`} note=${plural(changes.length, "matrix").replace("matrixs", "matrices")}>
    <${Facts} rows=${[["Rank", ranks.join(", ")], ["Alpha", number(alpha)], ["Base model", facts?.base && html`<${Name} text=${facts.base} />`], ["Targets", facts?.targets.length ? html`<${Name} text=${facts.targets.join(", ")} />` : null, true],
      ["Replaced whole", replaced.length ? whole(replaced.length) : null]]} />
    ${dora && html`<p class="quiet">The adapter also rescales rows (DoRA); the norms here leave that out.</p>`}
    <${Table} changes=${changes} /><//>`;
}

function Table({ changes }) {
  const related = changes.some((c) => c.relative !== null);
  const [order, setOrder] = useState("file");
  const value = (c) => c.relative ?? c.norm;
  const rows = useMemo(() => (order === "file" ? changes : [...changes].sort((a, b) => value(b) - value(a))), [changes, order]);
  const most = Math.max(1e-300, ...changes.map(value));
  return html`<div class="tools"><${Choice} label="Order" options=${[["file", "As in the file"], ["norm", "Largest first"]]} value=${order} onChange=${setOrder} /></div>
    <div class="scroll tall" tabindex="0" role="region" aria-label="Changed matrices"><table class="norms"><thead><tr><th>matrix</th><th>shape</th><th class="n">rank</th><th class="n">norm of the change</th>${related && html`<th class="n">of the weight’s</th>`}<th class="wide"><span class="hidden">share of the largest</span></th></tr></thead><tbody>
    ${rows.map((c) => html`<tr><th scope="row"><${Name} text=${c.name} /></th><td>${shape(c.shape)}</td><td class="n">${c.rank}</td><td class="n">${fixed(c.norm, 4)}</td>${related && html`<td class="n">${c.relative === null ? "" : percent(c.relative)}</td>`}<td class="wide"><i class="bar" style=${{ width: `${(value(c) / most) * 100}%` }}></i></td></tr>`)}</tbody></table></div>`;
}
