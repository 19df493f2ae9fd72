// What differs between two models: tensors by what happened to them, the error of each, layer by layer; metadata.
import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { HeatTable } from "../heatmap.js";
import { bytes, number, plural, whole } from "../text.js";
import { Choice, Name, Section, useAnswer, useWindow, Waiting } from "../ui.js";

const SWIFT = 2e8; // bytes that are compared without being asked
const KINDS = { "only in a": "only in A", "only in b": "only in B", shape: "other shape", values: "other values", type: "other type, same values", equal: "equal" };

export function Diff({ models }) {
  const size = models.flatMap((m) => m.files).reduce((s, f) => s + f.size, 0);
  const [wanted, setWanted] = useState(size <= SWIFT);
  const state = useAnswer("diff", {}, wanted);
  if (state.data) return html`<${Report} data=${state.data} models=${models} />`;
  return html`<${Section} title="Differences">
    <p><b>A</b> <${Name} text=${models[0].name} /> <span class="quiet">and</span> <b>B</b> <${Name} text=${models[1].name} /></p>
    ${wanted ? html`<${Waiting} state=${state} what="Comparing" />${!state.error && html`<button type="button" class="small" onClick=${() => setWanted(false)}>Stop</button>`}`
      : html`<p>Every value of both models is read for this, ${bytes(size)}. <button type="button" class="small" onClick=${() => setWanted(true)}>Compare them</button></p>`}<//>`;
}

function Report({ data, models }) {
  const [kind, setKind] = useState("");
  const rows = useMemo(() => data.tensors.filter((t) => !kind || t.kind === kind), [data, kind]);
  const counts = Object.entries(data.counts).filter(([, n]) => n > 0);
  const total = counts.reduce((s, [, n]) => s + n, 0);
  return html`<${Section} title="Differences" note=${`by ${data.names} names`}>
      <p><b>A</b> <${Name} text=${models[0].name} /> <span class="quiet">and</span> <b>B</b> <${Name} text=${models[1].name} /></p>
      <div class="figures tight">${counts.map(([k, n]) => html`<div><b>${whole(n)}</b><span>${KINDS[k] ?? k}</span></div>`)}</div>
      ${data.notes.map((note) => html`<p class="quiet">${note}</p>`)}
      ${data.tensors.length > 0 && html`<div class="tools"><${Choice} label="Show" options=${[["", "All that differ"], ...counts.filter(([k]) => k !== "equal").map(([k]) => [k, KINDS[k] ?? k])]} value=${kind} onChange=${setKind} /></div>
        <${Changes} rows=${rows} />`}
      ${!data.tensors.length && html`<p>All ${plural(total, "tensor")} are equal.</p>`}<//>
    <${Errors} tensors=${data.tensors} />
    ${data.metadata.length > 0 && html`<${Section} title="Metadata" note=${plural(data.metadata.length, "difference")}><div class="scroll tall" tabindex="0" role="region" aria-label="Metadata">
      <table class="three"><thead><tr><th>key</th><th>A</th><th>B</th></tr></thead><tbody>${data.metadata.map(([k, a, b]) => html`<tr><th scope="row"><${Name} text=${k} /></th><td>${a ? html`<${Name} text=${a} />` : html`<span class="quiet">not there</span>`}</td><td>${b ? html`<${Name} text=${b} />` : html`<span class="quiet">not there</span>`}</td></tr>`)}</tbody></table></div><//>`}`;
}

/** Signal to noise in decibels, of the mean square of the errors over that of the values. */
const decibels = (nmse) => (nmse === null || nmse === undefined || typeof nmse !== "number" ? null : nmse === 0 ? Infinity : -10 * Math.log10(nmse));

const ROW = 26;

function Changes({ rows }) {
  const { ref, first, last, full, top } = useWindow(rows.length, ROW);
  return html`<div class="grid changes" role="table" aria-label="Tensors that differ" aria-rowcount=${rows.length + 1}>
    <div role="rowgroup"><div class="row head" role="row" aria-rowindex="1">${["tensor", "what", "A", "B", "largest", "signal to noise", "cosine"].map((t, i) => html`<span role="columnheader" class=${i > 3 ? "n" : ""}>${t}</span>`)}</div></div>
    <div class="rows" ref=${ref} role="rowgroup" tabindex="0" aria-label="Rows"><div style=${{ height: `${full}px` }} role="presentation"><div style=${{ transform: `translateY(${top}px)` }} role="presentation">
      ${rows.slice(first, last).map((t, i) => html`<div class="row" role="row" aria-rowindex=${first + i + 2} key=${t.name}><span role="cell"><${Name} text=${t.name} /></span><span role="cell">${KINDS[t.kind] ?? t.kind}</span>
        <span role="cell"><${Name} text=${t.a} /></span><span role="cell"><${Name} text=${t.b} /></span><span role="cell" class="n">${number(t.max_abs)}</span><span role="cell" class="n">${noise(t.nmse)}</span><span role="cell" class="n">${number(t.cosine, 6)}</span></div>`)}
    </div></div></div></div>`;
}

const noise = (nmse) => {
  const db = decibels(nmse);
  return db === null ? "" : db === Infinity ? "∞" : `${db.toFixed(1)} dB`;
};

/** Layers by roles: where most was lost. */
function Errors({ tensors }) {
  const data = useMemo(() => errorMap(tensors), [tensors]);
  if (data.roles.length === 0) return null;
  return html`<${Section} title="Signal to noise, in decibels" note="the darker, the more was lost"><${HeatTable} data=${data} show=${(v) => v.toFixed(1)} pick=${() => {}} />
    <p class="quiet">Layers that lost most: ${data.worst.map(([layer, db]) => `${layer} (${db.toFixed(1)} dB)`).join(", ") || "none"}</p><//>`;
}

function errorMap(tensors) {
  const cells = new Map(), layers = new Set(), roles = new Set();
  for (const t of tensors) {
    const db = decibels(t.nmse), found = /(^|\.)(\d+)(?=\.|$)/.exec(t.name);
    if (db === null || !Number.isFinite(db)) continue;
    const layer = found ? Number(found[2]) : -1, role = found ? t.name.slice(found.index + found[0].length + 1) : t.name;
    layers.add(layer);
    roles.add(role);
    const key = `${layer}\0${role}`;
    cells.set(key, Math.min(db, cells.get(key) ?? Infinity));
  }
  const rows = [...layers].sort((a, b) => a - b), columns = [...roles];
  const table = rows.map((layer) => columns.map((role) => cells.get(`${layer}\0${role}`) ?? null));
  const mean = (row) => row.filter((v) => v !== null).reduce((s, v, _, all) => s + v / all.length, 0);
  const worst = rows.map((layer, i) => [layer, mean(table[i])]).filter(([layer]) => layer >= 0).sort((a, b) => a[1] - b[1]).slice(0, 3);
  return { layers: rows, roles: columns, cells: table, worst };
}
