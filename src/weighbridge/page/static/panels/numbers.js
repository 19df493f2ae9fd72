// The numbers of a tensor, and a map of all layers.
import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { holds, holdsValues, isExported } from "../api.js";
import { fromColumns, HeatTable, IN_HEADERS } from "../heatmap.js";
import { Histogram } from "../histogram.js";
import { twinOf } from "../state.js";
import { bytes, count, fixed, number, percent, plural, whole } from "../text.js";
import { Choice, Empty, Facts, headsOf, Name, Section, useAnswer, Waiting } from "../ui.js";
import { ERRORS } from "./diff.js";
import { Compared } from "./pair.js";

const SWIFT = 50_000_000; // weights that are counted without being asked

export function Numbers({ models, lists, model, list, place, go }) {
  return html`${holds("statistics") && html`<${Tensor} key=${`${model} ${place.tensor}`} models=${models} lists=${lists} model=${model} list=${list} place=${place} />`}
    <${HeatMap} models=${models} model=${model} lists=${lists} go=${go} />`;
}

function Tensor({ models, lists, model, list, place }) {
  const largest = useMemo(() => list.nbytes.reduce((best, n, i) => (Number(n) > Number(list.nbytes[best]) ? i : best), 0), [list]);
  const tensor = list.length ? list.at(Number(place.tensor ?? largest)) : null;
  const [wanted, setWanted] = useState(tensor && (isExported() || tensor.parameters <= SWIFT));
  const state = useAnswer("statistics", { model, tensor: tensor?.number ?? 0 }, Boolean(wanted && tensor));
  const twin = models.length > 1 ? twinOf(lists[1 - model], tensor) : -1;
  const other = useAnswer("statistics", { model: 1 - model, tensor: twin }, Boolean(state.data) && twin >= 0);
  if (!tensor) return html`<${Section} title="Numbers"><${Empty}>There are no tensors.<//><//>`;
  return html`<${Section} title=${html`<${Name} text=${tensor.name} />`} note=${`${tensor.dtype}, ${count(tensor.parameters)} weights, ${bytes(tensor.nbytes)}`}>
    ${!wanted && html`<p>Every value is read for this. <button type="button" class="small" onClick=${() => setWanted(true)}>Count them</button></p>`}
    ${wanted && !state.data && html`<${Waiting} state=${state} what="Counting" />${!state.error && html`<button type="button" class="small" onClick=${() => setWanted(false)}>Stop</button>`}`}
    ${state.data && html`<${Stats} data=${state.data} other=${other.data} models=${models} model=${model} />
      ${models.length > 1 && twin < 0 && html`<p class="quiet"><b>${"AB"[1 - model]}</b> has no tensor of this name, or of this role and layer.</p>`}
      <div class="columns by-tensor"><${Quantiles} sides=${other.data ? inOrder(model, [state.data, other.data]) : [state.data]} />
        ${tensor.shape.length > 1 && inOrder(model, [html`<${Channels} model=${model} tensor=${tensor.number} letter=${twin < 0 ? "" : "AB"[model]} />`, twin >= 0 && html`<${Channels} model=${1 - model} tensor=${twin} letter=${"AB"[1 - model]} />`])}</div>`}<//>`;
}

/** [of this model, of the other] as A, B. */
const inOrder = (model, both) => (model === 0 ? both : [both[1], both[0]]);

/** Of model 0 or 1: its letter, its name, and its colour in a drawing of both. */
const sideOf = (models, model) => ({ label: "AB"[model], name: models[model].name, color: ["var(--c1)", "var(--c2)"][model] });

function Stats({ data, other, models, model }) {
  const [log, setLog] = useState(true);
  const [scale, setScale] = useState("linear");
  const shown = (d) => (scale === "log" ? magnitudes(d) : d.histogram);
  const series = useMemo(() => [{ ...sideOf(models, model), ...shown(data) }, ...(other ? [{ ...sideOf(models, 1 - model), ...shown(other) }] : [])], [data, other, scale]);
  return html`<div class="tools"><${Choice} label="Counts" options=${[[true, "Log counts"], [false, "Counts"]]} value=${log} onChange=${setLog} />
      <${Choice} label="Values" options=${[["linear", "Values"], ["log", "Powers of two"]]} value=${scale} onChange=${setScale} />
      <span class="quiet">${data.exact ? "every value counted, exactly" : "every value counted; edges of bins and quantiles within 2⁻⁸"}${series.length > 1 ? ", as shares of each model" : ""}</span>
      ${series.length > 1 && html`<span class="keyed">${series.map((s) => html`<span><i class="dot" style=${{ background: s.color }}></i><b>${s.label}</b> <${Name} text=${s.name} /></span>`)}</span>`}</div>
    <${Histogram} series=${series} log=${log} />
    <details><summary>The histogram as a table</summary><div class="columns">${series.map((of) => html`<${Bins} series=${of} both=${series.length > 1} />`)}</div></details>
    ${other ? html`<${Compared} label="Both tensors" heads=${headsOf(models)} numbers rows=${factsOf(...inOrder(model, [data, other]))} />` : html`<${Facts} rows=${factsOf(data)} />`}`;
}

/** The quantiles of one tensor, or of A and B. */
function Quantiles({ sides }) {
  const shares = Object.keys(sides[0].quantiles ?? {});
  return shares.length > 0 && html`<div><h3>Quantiles</h3><div class="scroll" tabindex="0" role="region" aria-label="Quantiles"><table class="narrow"><thead><tr><th class="n">share below</th>${sides.length > 1 ? ["A", "B"].map((letter) => html`<th class="n">${letter}</th>`) : html`<th class="n">value</th>`}</tr></thead><tbody>
    ${shares.map((p) => html`<tr><th scope="row" class="n">${Number(p)}</th>${sides.map((side) => html`<td class="n">${fixed(side.quantiles?.[p])}</td>`)}</tr>`)}</tbody></table></div></div>`;
}

/** Rows of [what, value] of one tensor, or [what, A, B] of two; those that are zero in all are left out. */
function factsOf(...sides) {
  const of = (what, value) => [what, ...sides.map(value)];
  const rare = (what, key) => of(what, (d) => (sides.some((side) => side[key]) ? whole(d[key]) : null));
  return [
    of("Values", (d) => whole(d.count)), of("Mean", (d) => fixed(d.mean, 5)), of("Standard deviation", (d) => fixed(d.std, 5)), of("Root mean square", (d) => fixed(d.rms, 5)), of("Kurtosis", (d) => fixed(d.kurtosis)),
    of("Smallest", (d) => fixed(d.minimum, 5)), of("Largest", (d) => fixed(d.maximum, 5)), of("Zeros", (d) => `${whole(d.zeros)} (${percent(d.zeros / Math.max(d.count, 1))})`),
    rare("Negative zeros", "negative_zeros"), rare("Subnormals", "subnormals"), rare("Infinite", "inf"), rare("NaN", "nan"),
  ];
}

/** One histogram as a table: each has edges of its own. */
function Bins({ series: { label, name, edges, counts }, both }) {
  return html`<div class="scroll tall" tabindex="0" role="region" aria-label=${both ? `Histogram of ${label}` : "Histogram"}><table>${both && html`<caption><b>${label}</b> <${Name} text=${name} /></caption>`}<thead><tr><th>from</th><th>to</th><th class="n">count</th></tr></thead><tbody>
      ${counts.map((n, i) => html`<tr><td>${number(edges[i])}</td><td>${number(edges[i + 1])}</td><td class="n">${whole(n)}</td></tr>`)}</tbody></table></div>`;
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
function Channels({ model, tensor, letter }) {
  const state = useAnswer("channels", { model, tensor });
  if (!state.data) return html`<${Waiting} state=${state} what="Reading columns" />`;
  const { columns, median, outliers, largest } = state.data;
  return html`<div><h3>Columns${letter && ` of ${letter}`} <small>${outliers ? plural(outliers, "outlier") : "no outliers"} among ${whole(columns)}: an outlier’s largest magnitude exceeds 6 × the median, ${fixed(median)}</small></h3>
    <div class="scroll short" tabindex="0" role="region" aria-label=${letter ? `Largest columns of ${letter}` : "Largest columns"}><table class="narrow"><thead><tr><th class="n">column</th><th class="n">largest</th><th class="n">ratio</th></tr></thead><tbody>
    ${largest.map((c) => html`<tr><th scope="row" class="n">${whole(c.index)}</th><td class="n">${fixed(c.absmax)}</td><td class="n">${c.ratio === null ? "–" : `${fixed(c.ratio, 3)} ×`}</td></tr>`)}</tbody></table></div></div>`;
}

/** Statistics that need every value of the model. */
const OF_VALUES = { mean: "Mean", std: "Standard deviation", rms: "Root mean square", kurtosis: "Kurtosis", absmax: "Largest magnitude", zeros: "Share of zeros", nonfinite: "NaN and infinite" };
const WORST_HIGH = new Set(["error", "max_abs"]);
const SHOWN = { bits: (v) => v.toFixed(2), bytes, parameters: count, zeros: percent };

function HeatMap({ models, model, lists, go }) {
  const [statistic, setStatistic] = useState("bits");
  const [asked, setAsked] = useState(holdsValues());
  const errors = statistic in ERRORS, reads = statistic in OF_VALUES || errors;
  const options = [...Object.entries(IN_HEADERS).map(([key, [text]]) => [key, text]), ...(holds("heat") ? Object.entries(OF_VALUES) : []), ...(models.length > 1 && holds("diff") ? Object.entries(ERRORS).map(([key, [text]]) => [key, `${text}, of B against A`]) : [])];
  const shown = errors ? [model] : [...models.keys()];
  return html`<${Section} title="Layers and roles" note=${html`<select aria-label="Statistic" value=${statistic} onChange=${(e) => setStatistic(e.target.value)}>${options.map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select>`}>
    ${reads && !asked ? html`<p>Every value of ${models.length > 1 ? "both models" : "the model"} is read for this. <button type="button" class="small" onClick=${() => setAsked(true)}>Read them</button></p>`
      : html`<${Maps} key=${statistic} models=${models} shown=${shown} lists=${lists} statistic=${statistic} go=${go} stop=${() => setAsked(false)} />`}<//>`;
}

/** Maps with their columns in the order of the first. */
function alike([first, ...others]) {
  const ordered = (map) => {
    const rank = new Map(first.roles.map((role, i) => [role, i])), columns = map.roles.map((role, i) => [rank.get(role) ?? Infinity, i]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, i]) => i);
    return { ...map, roles: columns.map((i) => map.roles[i]), cells: map.cells.map((row) => columns.map((i) => row[i])) };
  };
  return [first, ...others.map((map) => (first && map ? ordered(map) : map))];
}

/** The map of each model on one scale of colours, or that of the errors of B against A. */
function Maps({ models, shown, lists, statistic, go, stop }) {
  const errors = statistic in ERRORS, reads = statistic in OF_VALUES || errors;
  const known = useMemo(() => (reads ? [] : alike(shown.map((m) => fromColumns(lists[m], statistic)))), [statistic]);
  const compared = useAnswer("diff", {}, errors);
  const heats = [0, 1].map((m) => useAnswer("heat", { model: m }, reads && !errors && shown.includes(m)));
  const states = errors ? [compared] : shown.map((m) => heats[m]);
  const read = useMemo(() => alike(states.map(({ data }) => (errors ? data?.errors : data)?.[statistic])), [statistic, ...states]);
  const maps = reads ? read : known;
  const failed = states.find(({ error }) => error), waiting = reads && (failed ?? states[maps.findIndex((map) => !map)]);
  if (waiting) return html`<${Waiting} state=${waiting} what="Reading" />${!waiting.error && html`<button type="button" class="small" onClick=${stop}>Stop</button>`}`;
  const find = (m, layer, role) => go({ panel: "numbers", model: m, tensor: lists[m].layer.findIndex((l, i) => l === layer && lists[m].roles[lists[m].role[i]] === role) });
  const of = (i) => (shown.length > 1 ? headsOf(models)[i] : "");
  return maps.map((map, i) => html`${of(i) && html`<h3>${of(i)}</h3>`}<${HeatTable} data=${map} scale=${maps} label=${of(i) ? `Layers and roles of ${"AB"[i]}` : "Layers and roles"} show=${SHOWN[statistic] ?? ERRORS[statistic]?.[1] ?? ((v) => fixed(v, 3))} pick=${(layer, role) => find(shown[i], layer, role)} worst=${WORST_HIGH.has(statistic) ? "high" : "low"} />
    ${map.roles.length === 0 && html`<${Empty}>No tensor differs in its values.<//>`}`);
}
