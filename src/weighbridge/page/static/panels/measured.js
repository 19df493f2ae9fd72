// Saved measurements and plans: the size of quantized models against what it costs, the errors of their tensors, and the
// type that a plan gives each tensor.
import { html, useMemo } from "../vendor/htm-preact.js";
import { colorsOf } from "../colors.js";
import { byPlace, HeatTable } from "../heatmap.js";
import { Scatter } from "../scatter.js";
import { bytes, fixed, number, percent, plural, visible, whole } from "../text.js";
import { Amount, Name, Section, StackedBar, useAnswer, Waiting } from "../ui.js";

const SHOWN = 2000; // rows of a table

export function Measured() {
  const state = useAnswer("measured", {});
  if (!state.data) return html`<${Section} title="Quality"><${Waiting} state=${state} what="Reading the reports" /><//>`;
  const { models, tensors, plans } = state.data;
  return html`${plans.map((plan) => html`<${Plan} plan=${plan} />`)}${models.length > 0 && html`<${Predictions} models=${models} />`}${tensors.map((report) => html`<${Tensors} report=${report} />`)}`;
}

const shown = (value, text) => (value === null ? html`<span class="quiet">–</span>` : text(value));

/** Names of types, most bytes first, with their colours. */
function typeColors(rows) {
  const sizes = new Map();
  for (const row of rows) sizes.set(row.type, (sizes.get(row.type) ?? 0) + row.bytes);
  return colorsOf([...sizes].sort((a, b) => b[1] - a[1]).map(([type]) => type));
}

/** A plan of `wb quantize`: the types by bytes, by layer and role, and against their errors. */
function Plan({ plan }) {
  const { tensors, expected } = plan;
  const types = useMemo(() => [...typeColors(tensors)].map(([name, color]) => typeRow(name, color, tensors.filter((t) => t.type === name))), [plan]);
  const grid = useMemo(() => byPlace(tensors, (t) => t.bits), [plan]), known = tensors.filter((t) => t.nmse !== null);
  return html`<${Section} title=${html`<span>Planned types <${Name} text=${plan.file} /></span>`} note=${`${plan.mixture ? visible(plan.mixture) : "chosen for the size"}: ${bytes(plan.nbytes)}, ${plan.bits.toFixed(2)} bits per weight`}>
      <${StackedBar} label="Bytes by type" rows=${types} detail=${typeDetail} />
      <h3>Types by layer and role</h3>
      <${HeatTable} data=${grid} scale=${[quantized(grid)]} plain=${(bits) => bits >= UNQUANTIZED} className="types" show=${(_, layer, role) => grid.at(layer, role).type} label="Types by layer and role" />
      <${PlanTable} rows=${tensors} /><//>
    ${expected.length > 1 && html`<${Expected} points=${expected} />`}
    ${known.length > 0 && html`<${Section} title="Size against error" note=${`of ${plural(known.length, "tensor")} whose error is known`}><${TensorErrors} rows=${known} /><//>`}`;
}

const UNQUANTIZED = 16; // bits

/** The cells of quantized tensors, which share the colours. */
const quantized = ({ cells }) => ({ cells: cells.map((row) => row.filter((bits) => bits < UNQUANTIZED)) });

function typeRow(name, color, rows) {
  const errors = rows.map((row) => row.nmse).filter((v) => v !== null).sort((a, b) => a - b);
  return { name, color, nbytes: rows.reduce((sum, row) => sum + row.bytes, 0), tensors: rows.length, bits: rows[0].bits, errors };
}

function typeDetail({ tensors, bits, errors }) {
  const range = errors.length > 0 && [...new Set([errors[0], errors.at(-1)].map((error) => fixed(error, 2)))].join(" to ");
  return `${plural(tensors, "tensor")}, ${bits.toFixed(2)} bits per weight${range ? `, NMSE ${range}` : ""}`;
}

function PlanTable({ rows }) {
  const remarks = (row) => [row.replaced && `instead of ${row.replaced}`, row.weighted && "weighted"].filter(Boolean).join(", ");
  return html`<details><summary>${plural(rows.length, "tensor")} as a table</summary><div class="scroll tall" tabindex="0" role="region" aria-label="Planned tensors"><table><thead><tr><th>tensor</th><th>from</th><th>to</th><th class="n">bytes</th><th class="n">NMSE</th><th><span class="hidden">remarks</span></th></tr></thead><tbody>
    ${rows.slice(0, SHOWN).map((row) => html`<tr><th scope="row"><${Name} text=${row.name} /></th><td>${visible(row.source)}</td><td>${row.type}</td><td class="n">${whole(row.bytes)}</td><td class="n">${shown(row.nmse, (v) => fixed(v, 3))}</td><td class="quiet">${visible(remarks(row))}</td></tr>`)}</tbody></table></div><${More} rows=${rows} /></details>`;
}

/** Says how many rows of a table are left out. */
const More = ({ rows }) => rows.length > SHOWN && html`<p class="quiet">The first ${whole(SHOWN)} of ${whole(rows.length)}.</p>`;

/** The divergence that a plan expects at its size, and at others. */
function Expected({ points }) {
  const drawn = points.map(({ bytes: size, kl }, i) => ({ x: size, y: kl, name: i ? "" : "this plan", label: `${bytes(size)}: ${number(kl, 3)} nats`, color: i ? "var(--c8)" : "var(--c1)", radius: i ? 4 : 6 }));
  return html`<${Section} title="Size against expected divergence" note="by the effects that were measured on the text">
    <${Scatter} points=${drawn} label="Size against expected divergence" xTitle="bytes of the quantized tensors" yTitle="expected KL divergence, nats" xText=${bytes} line names />
    <details><summary>Sizes as a table</summary><table class="narrow"><thead><tr><th class="n">bytes</th><th class="n">expected KL divergence, nats</th></tr></thead><tbody>${[...points].sort((a, b) => a.bytes - b.bytes).map((p) => html`<tr><td class="n">${whole(p.bytes)}</td><td class="n">${fixed(p.kl, 3)}</td></tr>`)}</tbody></table></details><//>`;
}

/** Each model's divergence from its reference, by its size. */
function Predictions({ models }) {
  const sized = models.filter((m) => m.nbytes !== null);
  const points = useMemo(() => sized.map((m) => ({ x: m.nbytes, y: m.kl, name: m.name, label: `${m.name}: ${bytes(m.nbytes)}, ${number(m.kl)} nats`, color: "var(--c1)" })), [models]);
  return html`<${Section} title="Size against divergence" note="wb quality">
    ${points.length > 1 && html`<${Scatter} points=${points} label="Size against divergence" xTitle="size of the model" yTitle="KL divergence, nats" xText=${bytes} line names />`}
    <div class="scroll" tabindex="0" role="region" aria-label="Measured models"><table class="named"><thead><tr><th>model</th><th>against</th><th class="n">size</th><th class="n">KL divergence, nats</th><th class="n">perplexity</th><th class="n">of the reference</th><th class="n">same likeliest token</th></tr></thead><tbody>
    ${models.map((m) => html`<tr><th scope="row"><${Name} text=${m.name} /></th><td><${Name} text=${m.reference} /></td><td class="n">${shown(m.nbytes, (n) => html`<${Amount} text=${bytes(n)} />`)}</td><td class="n">${fixed(m.kl, 3)}${m.kl_error !== null && html` <span class="quiet">± ${fixed(m.kl_error, 2)}</span>`}</td><td class="n">${shown(m.perplexity, (v) => fixed(v, 5))}</td><td class="n">${shown(m.reference_perplexity, (v) => fixed(v, 5))}</td><td class="n">${shown(m.same_top, percent)}</td></tr>`)}</tbody></table></div>
    ${sized.length < models.length && html`<p class="quiet">Sizes are those of this page’s models; ${plural(models.length - sized.length, "measured model")} ${models.length - sized.length === 1 ? "isn’t" : "aren’t"} among them.</p>`}<//>`;
}

function Tensors({ report }) {
  return html`<${Section} title=${html`<span>Errors of the tensors <${Name} text=${report.file} /></span>`} note=${`${bytes(report.nbytes)}, NMSE ${number(report.nmse)}`}><${TensorErrors} rows=${report.tensors} /><//>`;
}

/** Tensors by bits per weight and error: a drawing and its table. `rows`: [{name, type, bytes, bits, nmse}]. */
export function TensorErrors({ rows }) {
  const colors = useMemo(() => typeColors(rows), [rows]);
  const most = rows.reduce((n, row) => Math.max(n, row.bytes), 1);
  const points = useMemo(() => [...rows].sort((a, b) => b.bytes - a.bytes).map((row) => ({ x: row.bits, y: row.nmse, color: colors.get(row.type), radius: 3 + 6 * Math.sqrt(row.bytes / most), label: `${row.name}: ${row.type}, ${bytes(row.bytes)}, NMSE ${number(row.nmse, 3)}` })), [rows]);
  return html`<p class="keyed">${[...colors].map(([type, color]) => html`<span><i class="dot" style=${{ background: color }}></i>${type} <span class="quiet">× ${whole(rows.filter((row) => row.type === type).length)}</span></span>`)}<span class="quiet">area: bytes of the tensor; points on one spot lie side by side</span></p>
    <${Scatter} points=${points} label="Bits per weight against error" xTitle="bits per weight" yTitle="NMSE" spread />
    <details><summary>${plural(rows.length, "tensor")} as a table</summary><div class="scroll tall" tabindex="0" role="region" aria-label="Errors of the tensors"><table><thead><tr><th>tensor</th><th>type</th><th class="n">bytes</th><th class="n">bits per weight</th><th class="n">NMSE</th></tr></thead><tbody>
    ${rows.slice(0, SHOWN).map((row) => html`<tr><th scope="row"><${Name} text=${row.name} /></th><td>${row.type}</td><td class="n">${whole(row.bytes)}</td><td class="n">${row.bits.toFixed(2)}</td><td class="n">${fixed(row.nmse, 3)}</td></tr>`)}</tbody></table></div><${More} rows=${rows} /></details>`;
}
