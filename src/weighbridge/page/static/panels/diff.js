// What differs between two models: tensors by what happened to them, the error of each, layer by layer; metadata.
import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { isExported } from "../api.js";
import { filled, HeatTable } from "../heatmap.js";
import { bytes, fixed, plural, sizeOf, visible, whole } from "../text.js";
import { twinOf } from "../state.js";
import { Choice, Empty, Name, Section, SideBySide, useAnswer, useWindow, Waiting } from "../ui.js";
import { TensorErrors } from "./measured.js";

const SWIFT = 2e8; // bytes that are compared without being asked
const KINDS = { "only in a": "only in A", "only in b": "only in B", renamed: "renamed", shape: "other shape", values: "changed", "type, values": "retyped, changed", type: "retyped", equal: "the same" };
const kindOf = (t) => (t.kind === "values" && t.retyped ? "type, values" : t.kind);
/** Statistics of errors: what they are called, and how a value is shown. */
/** A cosine, of which 1 has as many digits as one beside it. */
const cosine = (v) => (typeof v === "number" ? v.toFixed(6) : fixed(v));
export const ERRORS = { snr: ["Signal to noise, dB", (v) => v.toFixed(1)], error: ["Relative error", (v) => fixed(v, 3)], max_abs: ["Largest error", (v) => fixed(v, 3)], cosine: ["Cosine", (v) => cosine(v)] };

export function Diff({ models, lists }) {
  const size = models.reduce((sum, m) => sum + sizeOf(m), 0);
  const [wanted, setWanted] = useState(isExported() || size <= SWIFT);
  const state = useAnswer("diff", {}, wanted);
  if (state.data) return html`<${Report} data=${state.data.report} models=${models} /><${SizeAndError} tensors=${state.data.report.tensors} list=${lists[1]} /><${Errors} layers=${state.data.report.layers} maps=${state.data.errors} />
    <${Templates} rows=${state.data.template} /><${Metadata} rows=${state.data.report.metadata} />`;
  return html`<${Section} title="Differences">
    <p><b>A</b> <${Name} text=${models[0].name} /> <span class="quiet">and</span> <b>B</b> <${Name} text=${models[1].name} /></p>
    ${wanted ? html`<${Waiting} state=${state} what="Comparing" />${!state.error && html`<button type="button" class="small" onClick=${() => setWanted(false)}>Stop</button>`}`
      : html`<p>Every value of both models is read for this, ${bytes(size)}. <button type="button" class="small" onClick=${() => setWanted(true)}>Compare them</button></p>`}<//>`;
}

function Report({ data, models }) {
  const [kind, setKind] = useState("");
  const rows = useMemo(() => data.tensors.filter((t) => !kind || kindOf(t) === kind), [data, kind]);
  const counts = useMemo(() => countsOf(data), [data]);
  const total = counts.reduce((s, [, n]) => s + n, 0), differing = counts.filter(([k]) => k !== "equal");
  return html`<${Section} title="Differences" note=${`by ${data.names} names`}>
      <p><b>A</b> <${Name} text=${models[0].name} /> <span class="quiet">and</span> <b>B</b> <${Name} text=${models[1].name} /></p>
      <div class="figures tight">${counts.map(([k, n]) => html`<div><b>${whole(n)}</b><span>${KINDS[k] ?? k}</span></div>`)}</div>
      ${data.notes.map((note) => html`<p class="quiet">${visible(note)}</p>`)}
      ${differing.length > 1 && html`<div class="tools"><${Choice} label="Show" options=${[["", "All that differ"], ...differing.map(([k]) => [k, KINDS[k] ?? k])]} value=${kind} onChange=${setKind} /></div>`}
      ${data.tensors.length > 0 && html`<${Changes} rows=${rows} />`}
      ${!data.tensors.length && html`<${Empty}>All ${plural(total, "tensor")} are equal.<//>`}<//>`;
}

/** How many tensors there are of each kind, in the order of the kinds. */
function countsOf({ tensors, counts }) {
  const found = new Map(Object.keys(KINDS).map((k) => [k, 0]));
  for (const t of tensors) found.set(kindOf(t), (found.get(kindOf(t)) ?? 0) + 1);
  found.set("equal", counts.equal ?? 0);
  return [...found].filter(([, n]) => n > 0);
}

const ROW = 26;
const noise = (t) => (t.snr === null ? (t.nmse === 0 ? "∞" : "") : `${t.snr.toFixed(1)} dB`);

/** `Q4_K[128, 256]` -> `Q4_K 128 × 256`. */
const stored = (text) => visible(text ?? "").replace(/\[(.*)\]$/, (_, dims) => ` ${dims.replaceAll(", ", " × ") || "scalar"}`);

function Changes({ rows }) {
  const { ref, first, last, full, top } = useWindow(rows.length, ROW);
  return html`<div class="grid changes" role="table" aria-label="Tensors that differ" aria-rowcount=${rows.length + 1}>
    <div role="rowgroup"><div class="row head" role="row" aria-rowindex="1">${["tensor", "what", "A", "B", "largest", "signal to noise", "cosine"].map((t, i) => html`<span role="columnheader" class=${i > 3 ? "n" : ""}>${t}</span>`)}</div></div>
    <div class="rows" ref=${ref} style=${{ maxHeight: `${Math.max(rows.length, 2) * ROW + 16}px` }} role="rowgroup" tabindex="0" aria-label="Rows"><div style=${{ height: `${full}px` }} role="presentation"><div style=${{ transform: `translateY(${top}px)` }} role="presentation">
      ${rows.slice(first, last).map((t, i) => html`<div class="row" role="row" aria-rowindex=${first + i + 2} key=${t.name}><span role="cell" class="end"><bdi dir="ltr"><${Name} text=${t.name} />${t.name_b && html` <span class="quiet">→</span> <${Name} text=${t.name_b} />`}</bdi></span><span role="cell">${KINDS[kindOf(t)]}</span>
        <span role="cell">${stored(t.a)}</span><span role="cell">${stored(t.b)}</span><span role="cell" class="n">${fixed(t.max_abs)}</span><span role="cell" class="n">${noise(t) || html`<span class="brief">${KINDS[kindOf(t)]}</span>`}</span><span role="cell" class="n">${cosine(t.cosine)}</span></div>`)}
    </div></div></div></div>`;
}

/** Bits per weight of B's tensors against their errors. Tensors without a counterpart in the list are left out. */
function SizeAndError({ tensors, list }) {
  const rows = useMemo(() => (list?.length === undefined ? [] : sized(tensors, list)), [tensors, list]);
  return rows.length > 1 && html`<${Section} title="Size against error" note="of B’s tensors"><${TensorErrors} rows=${rows} /><//>`;
}

function sized(tensors, list) {
  return tensors.filter((t) => typeof t.nmse === "number").flatMap((t) => {
    const at = twinOf(list, { name: t.name_b ?? t.name, layer: t.layer, role: t.role }), twin = at < 0 ? null : list.at(at);
    return twin?.parameters ? [{ name: t.name, type: twin.dtype, bytes: twin.nbytes, bits: (twin.nbytes * 8) / twin.parameters, nmse: t.nmse }] : [];
  });
}

/** Which layers lost most, and where in them. */
function Errors({ layers, maps }) {
  const [statistic, setStatistic] = useState("snr");
  const data = maps[statistic], [, show] = ERRORS[statistic];
  if (!data.roles.length) return null;
  const most = Math.max(...layers.map((l) => l.nmse), 1e-300);
  return html`<${Section} title="Errors by layer and role" note=${html`<select aria-label="Error" value=${statistic} onChange=${(e) => setStatistic(e.target.value)}>${Object.entries(ERRORS).map(([key, [text]]) => html`<option value=${key}>${text}</option>`)}</select>`}>
    <${HeatTable} data=${filled(data)} show=${show} worst=${statistic === "snr" || statistic === "cosine" ? "low" : "high"} />
    ${layers.length > 0 && html`<h3>Layers that lost most</h3><div class="scroll short" tabindex="0" role="region" aria-label="Layers that lost most"><table class="narrow"><thead><tr><th class="n">layer</th><th class="n">signal to noise</th><th class="n">squared error</th><th class="wide"><span class="hidden">share of the worst layer’s</span></th></tr></thead><tbody>
      ${layers.map((l) => html`<tr><th scope="row" class="n">${l.layer}</th><td class="n">${noise(l)}</td><td class="n">${fixed(l.nmse, 3)}</td><td class="wide"><i class="bar" style=${{ width: `${(l.nmse / most) * 100}%` }}></i></td></tr>`)}</tbody></table></div>`}<//>`;
}

/** Both chat templates, line beside line. */
function Templates({ rows }) {
  if (!rows) return null;
  const differ = rows.filter((r) => !r.same).length;
  return html`<${Section} title="Chat template" note=${`${plural(differ, "line")} ${differ === 1 ? "differs" : "differ"}`}><${SideBySide} rows=${rows} label="Chat templates side by side" /><//>`;
}

function Metadata({ rows }) {
  if (!rows.length) return null;
  const value = (text) => (text ? html`<${Name} text=${text} />` : html`<span class="quiet">not there</span>`);
  return html`<${Section} title="Metadata" note=${plural(rows.length, "difference")}><div class="scroll tall" tabindex="0" role="region" aria-label="Metadata">
    <table class="three"><thead><tr><th>key</th><th>A</th><th>B</th></tr></thead><tbody>${rows.map(([k, a, b]) => html`<tr><th scope="row"><${Name} text=${k} /></th><td>${value(a)}</td><td>${value(b)}</td></tr>`)}</tbody></table></div><//>`;
}
