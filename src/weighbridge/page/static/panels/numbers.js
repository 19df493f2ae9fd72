// The numbers of a tensor, and a map of all layers.
import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { holdsValues, isExported } from "../api.js";
import { fromColumns, HeatTable, IN_HEADERS } from "../heatmap.js";
import { Histogram } from "../histogram.js";
import { bytes, count, number, percent, plural, whole } from "../text.js";
import { Choice, Facts, Name, Section, useAnswer, Waiting } from "../ui.js";
import { ERRORS } from "./diff.js";

const SWIFT = 50_000_000; // weights that are counted without being asked

export function Numbers({ models, lists, model, list, place, go }) {
  return html`<${Tensor} key=${place.tensor} models=${models} lists=${lists} model=${model} list=${list} place=${place} />
    <${HeatMap} models=${models} model=${model} list=${list} go=${go} />`;
}

function Tensor({ models, lists, model, list, place }) {
  const largest = useMemo(() => list.nbytes.reduce((best, n, i) => (Number(n) > Number(list.nbytes[best]) ? i : best), 0), [list]);
  const tensor = list.length ? list.at(Number(place.tensor ?? largest)) : null;
  const [wanted, setWanted] = useState(tensor && (isExported() || tensor.parameters <= SWIFT));
  const state = useAnswer("statistics", { model, tensor: tensor?.number ?? 0 }, Boolean(wanted && tensor));
  const twin = models.length > 1 ? twinOf(lists[1 - model], tensor) : -1;
  const other = useAnswer("statistics", { model: 1 - model, tensor: twin }, Boolean(state.data) && twin >= 0);
  if (!tensor) return html`<${Section} title="Numbers"><p class="quiet">There are no tensors.</p><//>`;
  return html`<${Section} title=${html`<${Name} text=${tensor.name} />`} note=${`${tensor.dtype}, ${count(tensor.parameters)} weights, ${bytes(tensor.nbytes)}`}>
    ${!wanted && html`<p>Every value is read for this. <button type="button" class="small" onClick=${() => setWanted(true)}>Count them</button></p>`}
    ${wanted && !state.data && html`<${Waiting} state=${state} what="Counting" />${!state.error && html`<button type="button" class="small" onClick=${() => setWanted(false)}>Stop</button>`}`}
    ${state.data && html`<${Stats} data=${state.data} other=${other.data} models=${models} model=${model} />${tensor.shape.length > 1 && html`<${Channels} model=${model} tensor=${tensor.number} />`}`}<//>`;
}

/** The same tensor of another model: of the same name, or of the same role and layer. */
function twinOf(list, tensor) {
  if (!tensor) return -1;
  const named = list.names.indexOf(tensor.name);
  return named >= 0 ? named : list.layer.findIndex((layer, i) => layer === tensor.layer && list.roles[list.role[i]] === tensor.role);
}

/** Of model 0 or 1: its letter, its name, and its colour in a drawing of both. */
const sideOf = (models, model) => ({ label: "AB"[model], name: models[model].name, color: ["var(--c1)", "var(--c2)"][model] });

function Stats({ data, other, models, model }) {
  const [log, setLog] = useState(true);
  const [scale, setScale] = useState("linear");
  const shown = (d) => (scale === "log" ? magnitudes(d) : d.histogram);
  const series = useMemo(() => [{ ...sideOf(models, model), ...shown(data) }, ...(other ? [{ ...sideOf(models, 1 - model), ...shown(other) }] : [])], [data, other, scale]);
  const q = Object.entries(data.quantiles ?? {});
  return html`<div class="tools"><${Choice} label="Counts" options=${[[true, "Log counts"], [false, "Counts"]]} value=${log} onChange=${setLog} />
      <${Choice} label="Values" options=${[["linear", "Values"], ["log", "Powers of two"]]} value=${scale} onChange=${setScale} />
      <span class="quiet">${data.exact ? "every value counted, exactly" : "every value counted; edges of bins and quantiles within 2⁻⁸"}${series.length > 1 ? ", as shares of each model" : ""}</span>
      ${series.length > 1 && html`<span class="keyed">${series.map((s) => html`<span><i class="dot" style=${{ background: s.color }}></i><b>${s.label}</b> <${Name} text=${s.name} /></span>`)}</span>`}</div>
    <${Histogram} series=${series} log=${log} />
    <details><summary>The histogram as a table</summary><div class="scroll tall" tabindex="0" role="region" aria-label="Histogram"><table><thead><tr><th>from</th><th>to</th>${series.map((s) => html`<th class="n">count${series.length > 1 ? ` ${s.label}` : ""}</th>`)}</tr></thead><tbody>
      ${series[0].counts.map((n, i) => html`<tr><td>${number(series[0].edges[i])}</td><td>${number(series[0].edges[i + 1])}</td><td class="n">${whole(n)}</td>${series[1] && html`<td class="n">${whole(series[1].counts[i] ?? 0)}</td>`}</tr>`)}</tbody></table></div></details>
    <${Facts} rows=${[
      ["Values", whole(data.count)], ["Mean", number(data.mean, 5)], ["Standard deviation", number(data.std, 5)], ["Root mean square", number(data.rms, 5)], ["Kurtosis", number(data.kurtosis)],
      ["Smallest", number(data.minimum, 5)], ["Largest", number(data.maximum, 5)], ["Zeros", `${whole(data.zeros)} (${percent(data.zeros / Math.max(data.count, 1))})`],
      ["Negative zeros", data.negative_zeros ? whole(data.negative_zeros) : null], ["Subnormals", data.subnormals ? whole(data.subnormals) : null], ["Infinite", data.inf ? whole(data.inf) : null], ["NaN", data.nan ? whole(data.nan) : null],
    ]} />
    ${q.length > 0 && html`<h3>Quantiles</h3><div class="scroll" tabindex="0" role="region" aria-label="Quantiles"><table class="narrow"><thead><tr>${q.map(([p]) => html`<th class="n">${Number(p)}</th>`)}</tr></thead><tbody><tr>${q.map(([, v]) => html`<td class="n">${number(v)}</td>`)}</tr></tbody></table></div>`}`;
}

/** Counts by power of two as a histogram over the exponents. */
const magnitudes = ({ magnitudes: bins }) => {
  if (!bins.length) return { edges: [], counts: [] };
  const first = bins[0].exponent, last = bins.at(-1).exponent;
  const counts = Array.from({ length: last - first + 1 }, () => 0);
  for (const { exponent, count } of bins) counts[exponent - first] = count;
  return { edges: [...counts.keys(), counts.length].map((i) => first + i), counts };
};

/** Columns whose largest magnitude stands out. */
function Channels({ model, tensor }) {
  const state = useAnswer("channels", { model, tensor });
  if (!state.data) return html`<${Waiting} state=${state} what="Reading columns" />`;
  const { columns, median, outliers, largest } = state.data;
  return html`<h3>Columns <small>${whole(columns)}; ${outliers ? plural(outliers, "outlier") : "no outlier"}: largest magnitude over 6 times the median column’s, ${number(median)}</small></h3>
    <div class="scroll short" tabindex="0" role="region" aria-label="Largest columns"><table class="narrow"><thead><tr><th class="n">column</th><th class="n">largest</th><th class="n">ratio</th></tr></thead><tbody>
    ${largest.map((c) => html`<tr><th scope="row" class="n">${whole(c.index)}</th><td class="n">${number(c.absmax)}</td><td class="n">${c.ratio === null ? "–" : `${number(c.ratio, 3)} ×`}</td></tr>`)}</tbody></table></div>`;
}

/** Statistics that need every value of the model. */
const OF_VALUES = { mean: "Mean", std: "Standard deviation", rms: "Root mean square", kurtosis: "Kurtosis", absmax: "Largest magnitude", zeros: "Share of zeros", nonfinite: "NaN and infinite" };
const WORST_HIGH = new Set(["error", "max_abs"]);
const SHOWN = { bytes, parameters: count, zeros: percent };

function HeatMap({ models, model, list, go }) {
  const [statistic, setStatistic] = useState("bits");
  const [asked, setAsked] = useState(holdsValues());
  const errors = statistic in ERRORS, reads = statistic in OF_VALUES || errors;
  const known = useMemo(() => (reads ? null : fromColumns(list, statistic)), [list, statistic]);
  const heat = useAnswer("heat", { model }, reads && !errors && asked);
  const compared = useAnswer("diff", {}, errors && asked);
  const state = errors ? compared : heat;
  const data = known ?? (errors ? compared.data?.errors[statistic] : heat.data?.[statistic]);
  const find = (layer, role) => go({ panel: "numbers", tensor: list.layer.findIndex((l, i) => l === layer && list.roles[list.role[i]] === role) });
  const options = [...Object.entries(IN_HEADERS).map(([key, [text]]) => [key, text]), ...Object.entries(OF_VALUES), ...(models.length > 1 ? Object.entries(ERRORS).map(([key, [text]]) => [key, `${text}, of B against A`]) : [])];
  return html`<${Section} title="Layers and roles" note=${html`<select aria-label="Statistic" value=${statistic} onChange=${(e) => setStatistic(e.target.value)}>${options.map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select>`}>
    ${reads && !asked && html`<p>Every value of ${errors ? "both models" : "the model"} is read for this. <button type="button" class="small" onClick=${() => setAsked(true)}>Read them</button></p>`}
    ${data ? html`<${HeatTable} data=${data} show=${SHOWN[statistic] ?? ERRORS[statistic]?.[1] ?? ((v) => number(v, 3))} pick=${find} worst=${WORST_HIGH.has(statistic) ? "high" : "low"} />
        ${data.roles.length === 0 && html`<p class="quiet">No tensor differs in its values.</p>`}`
      : reads && asked && html`<${Waiting} state=${state} what="Reading" />${!state.error && html`<button type="button" class="small" onClick=${() => setAsked(false)}>Stop</button>`}`}<//>`;
}
