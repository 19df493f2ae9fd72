// An importance matrix: how much of what enters each tensor, by layer and role, and in which columns.
import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { byPlace, HeatTable } from "../heatmap.js";
import { fixed, number, percent, plural, visible, whole } from "../text.js";
import { Facts, Name, Section, useAnswer, Waiting } from "../ui.js";

/** What each entry has: [title, value, how it is shown]. */
const STATISTICS = {
  mean: ["Mean square", (e) => e.mean, (v) => fixed(v, 3)], most: ["Largest column", (e) => e.most, (v) => fixed(v, 3)],
  top: ["Share of the largest 1 % of the columns", (e) => e.top, percent], seen: ["Times seen, at least", (e) => e.seen[0], whole],
};

export function Importance({ models }) {
  return models.map((info, model) => info.imatrix && html`<${Matrix} key=${model} model=${model} info=${info} />`);
}

function Matrix({ model, info }) {
  const state = useAnswer("importance", { model });
  const [statistic, setStatistic] = useState("mean");
  const [chosen, setChosen] = useState(null);
  if (!state.data) return html`<${Section} title="Importance"><${Waiting} state=${state} what="Reading the matrix" /><//>`;
  const { entries, datasets, chunks, chunk_size: size, unit } = state.data, [, , show] = STATISTICS[statistic];
  const entry = chosen ?? entries.reduce((best, e) => (best && best.mean >= e.mean ? best : e), null);
  return html`<${Section} title=${html`<span>Importance <${Name} text=${info.name} /></span>`} note=${html`<select aria-label="Importance by" value=${statistic} onChange=${(e) => setStatistic(e.target.value)}>${Object.entries(STATISTICS).map(([key, [text]]) => html`<option value=${key}>${text}</option>`)}</select>`}>
      <p class="quiet">Mean squares of what enters each tensor${chunks > 0 && html`, over ${plural(chunks, "chunk")}${size > 0 && html` of ${whole(size)} tokens`}`}${datasets.length > 0 && html` of ${datasets.map((text, i) => html`${i > 0 && ", "}<${Name} text=${text} />`)}`}. Choose a cell to see its columns.</p>
      <${Heat} entries=${entries} statistic=${statistic} show=${show} choose=${setChosen} /><//>
    ${entry && html`<${Entry} entry=${entry} unit=${unit} />`}
    <${Table} entries=${entries} entry=${entry} choose=${setChosen} />`;
}

function Heat({ entries, statistic, show, choose }) {
  const data = useMemo(() => byPlace(entries, STATISTICS[statistic][1]), [entries, statistic]);
  return html`<${HeatTable} data=${data} label="Importance by layer and role" show=${show} pick=${(layer, role) => choose(data.at(layer, role))} />`;
}

/** One entry: its columns as bars, each the largest of a run. */
function Entry({ entry: e, unit }) {
  const most = Math.max(1e-300, ...e.profile), run = Math.ceil(e.columns / Math.max(e.profile.length, 1));
  return html`<${Section} title=${html`<${Name} text=${e.name} />`} note=${`${plural(e.columns, "column")}${e.matrices > 1 ? `, ${whole(e.matrices)} matrices` : ""}`}>
    <div class="profile" role="img" aria-label=${`Columns of ${visible(e.name)}: the largest mean square is ${number(e.most)}, in column ${e.at[1]}.`}>${e.profile.map((v, i) => html`<i style=${{ height: `${Math.max(1, (v / most) * 100)}%` }} title=${`columns from ${whole(i * run)}: ${number(v)}`}></i>`)}</div>
    <${Facts} rows=${[["Mean square", number(e.mean, 5)], ["Largest", `${number(e.most, 5)} in column ${whole(e.at[1])}${e.matrices > 1 ? ` of matrix ${whole(e.at[0])}` : ""}`], ["Largest 1 % of columns", percent(e.top)],
      [unit === "calls" ? "Calls" : "Tokens seen", e.seen[0] === e.seen[1] ? whole(e.seen[0]) : `${whole(e.seen[0])} to ${whole(e.seen[1])}`], [`Matrices without ${unit}`, e.unused || null]]} /><//>`;
}

function Table({ entries, entry, choose }) {
  const most = Math.max(1e-300, ...entries.map((e) => e.mean));
  return html`<${Section} title=${plural(entries.length, "entry").replace("entrys", "entries")}><div class="scroll tall" tabindex="0" role="region" aria-label="Entries"><table class="norms"><thead><tr><th>tensor</th><th class="n">columns</th><th class="n">mean square</th><th class="n">largest</th><th class="n">column</th><th class="wide"><span class="hidden">share of the largest mean square</span></th></tr></thead><tbody>
    ${entries.map((e) => html`<tr class=${e === entry ? "picked" : ""}><th scope="row"><button type="button" class="plain" onClick=${() => choose(e)}><${Name} text=${e.name} /></button></th><td class="n">${whole(e.columns)}</td><td class="n">${fixed(e.mean)}</td><td class="n">${fixed(e.most)}</td><td class="n">${whole(e.at[1])}</td><td class="wide"><i class="bar" style=${{ width: `${(e.mean / most) * 100}%` }}></i></td></tr>`)}</tbody></table></div><//>`;
}
