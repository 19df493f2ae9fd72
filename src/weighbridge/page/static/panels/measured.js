// Saved measurements: the size of quantized models against what it costs, and the errors of their tensors.
import { html, useMemo } from "../vendor/htm-preact.js";
import { colorsOf } from "../colors.js";
import { Scatter } from "../scatter.js";
import { bytes, fixed, number, percent, plural, whole } from "../text.js";
import { Amount, Name, Section, useAnswer, Waiting } from "../ui.js";

export function Measured() {
  const state = useAnswer("measured", {});
  if (!state.data) return html`<${Section} title="Quality"><${Waiting} state=${state} what="Reading the reports" /><//>`;
  const { models, tensors } = state.data;
  return html`${models.length > 0 && html`<${Predictions} models=${models} />`}${tensors.map((report) => html`<${Tensors} report=${report} />`)}`;
}

const shown = (value, text) => (value === null ? html`<span class="quiet">–</span>` : text(value));

/** Each model's divergence from its reference, by its size. */
function Predictions({ models }) {
  const sized = models.filter((m) => m.nbytes !== null);
  const points = useMemo(() => sized.map((m) => ({ x: m.nbytes, y: m.kl, name: m.name, label: `${m.name}: ${bytes(m.nbytes)}, ${number(m.kl)} nats`, color: "var(--c1)" })), [models]);
  return html`<${Section} title="Size against divergence" note="wb quality">
    ${points.length > 0 && html`<${Scatter} points=${points} label="Size against divergence" xTitle="size of the model" yTitle="KL divergence, nats" xText=${bytes} line names />`}
    <div class="scroll" tabindex="0" role="region" aria-label="Measured models"><table><thead><tr><th>model</th><th>against</th><th class="n">size</th><th class="n">KL divergence, nats</th><th class="n">perplexity</th><th class="n">of the reference</th><th class="n">same likeliest token</th></tr></thead><tbody>
    ${models.map((m) => html`<tr><th scope="row"><${Name} text=${m.name} /></th><td><${Name} text=${m.reference} /></td><td class="n">${shown(m.nbytes, (n) => html`<${Amount} text=${bytes(n)} />`)}</td><td class="n">${fixed(m.kl, 3)}${m.kl_error !== null && html` <span class="quiet">± ${number(m.kl_error, 2)}</span>`}</td><td class="n">${shown(m.perplexity, (v) => number(v, 5))}</td><td class="n">${shown(m.reference_perplexity, (v) => number(v, 5))}</td><td class="n">${shown(m.same_top, percent)}</td></tr>`)}</tbody></table></div>
    ${sized.length < models.length && html`<p class="quiet">Sizes are those of this page’s models; ${plural(models.length - sized.length, "measured model")} ${models.length - sized.length === 1 ? "isn’t" : "aren’t"} among them.</p>`}<//>`;
}

function Tensors({ report }) {
  return html`<${Section} title=${html`<span>Errors of the tensors <${Name} text=${report.file} /></span>`} note=${`${bytes(report.nbytes)}, NMSE ${number(report.nmse)}`}><${TensorErrors} rows=${report.tensors} /><//>`;
}

/** Tensors by bits per weight and error: a drawing and its table. `rows`: [{name, type, bytes, bits, nmse}]. */
export function TensorErrors({ rows }) {
  const colors = useMemo(() => {
    const sizes = new Map();
    for (const row of rows) sizes.set(row.type, (sizes.get(row.type) ?? 0) + row.bytes);
    return colorsOf([...sizes].sort((a, b) => b[1] - a[1]).map(([type]) => type));
  }, [rows]);
  const most = rows.reduce((n, row) => Math.max(n, row.bytes), 1);
  const points = useMemo(() => rows.map((row) => ({ x: row.bits, y: row.nmse, color: colors.get(row.type), radius: 3 + 6 * Math.sqrt(row.bytes / most), label: `${row.name}: ${row.type}, ${bytes(row.bytes)}, NMSE ${number(row.nmse, 3)}` })), [rows]);
  return html`<p class="keyed">${[...colors].map(([type, color]) => html`<span><i class="dot" style=${{ background: color }}></i>${type}</span>`)}</p>
    <${Scatter} points=${points} label="Bits per weight against error" xTitle="bits per weight; the area of a point is the size of the tensor" yTitle="NMSE" />
    <details><summary>${plural(rows.length, "tensor")} as a table</summary><div class="scroll tall" tabindex="0" role="region" aria-label="Errors of the tensors"><table><thead><tr><th>tensor</th><th>type</th><th class="n">bytes</th><th class="n">bits per weight</th><th class="n">NMSE</th></tr></thead><tbody>
    ${rows.slice(0, 2000).map((row) => html`<tr><th scope="row"><${Name} text=${row.name} /></th><td>${row.type}</td><td class="n">${whole(row.bytes)}</td><td class="n">${row.bits.toFixed(2)}</td><td class="n">${fixed(row.nmse, 3)}</td></tr>`)}</tbody></table></div></details>`;
}
