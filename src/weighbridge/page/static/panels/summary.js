// What the model is, on one screen.
import { html, useMemo } from "../vendor/htm-preact.js";
import { colorsOf, partColor } from "../colors.js";
import { bytes, count, filesOf, message, number, plural, sizeOf, visible, whole } from "../text.js";
import { Amount, Answer, Chip, Facts, Name, Section, StackedBar, useAnswer, Waiting } from "../ui.js";
import { canOpen, stepPlace } from "../verdict.js";

/** The headline stands at once; what needs all tensors comes when they are counted. */
export function Summary({ model, models, verdict, go }) {
  const state = useAnswer("summary", { model }), { data } = state;
  return html`
    <${Headline} info=${models[model]} data=${data} />
    ${data ? html`<${Counted} data=${data} />` : html`<${Section}><${Waiting} state=${state} what="Counting" /><//>`}
    <div class="columns">
      <${Findings} state=${verdict} open=${(step) => go({ ...stepPlace(step), model })} />
      <${Files} info=${models[model]} report=${data?.report} />
    </div>
    <${Metadata} model=${model} />`;
}

/** Formats whose files declare, or whose writers keep, an alignment. */
const ALIGNED = new Set(["gguf", "safetensors", "npz", "npy"]);

function Counted({ data }) {
  const colors = useMemo(() => colorsOf(data.dtypes.map((d) => d.name)), [data]);
  return html`<div class="columns">
      ${data.parts.some(({ part }) => part.name !== "other") && html`<${Shares} title="Parts of the model" rows=${data.parts.map(({ part, dtypes }) => ({ ...part, dtypes, color: partColor(part.name) }))}
        detail=${(r) => r.dtypes.map((d) => d.name).join(", ")} />`}
      <${Shares} title="Number types" rows=${data.dtypes.map((r) => ({ ...r, color: colors.get(r.name) }))} detail=${(r) => plural(r.tensors, "tensor")} />
    </div>`;
}

function Headline({ info, data }) {
  const report = data?.report, m = report?.model ?? info.facts, bits = report?.bits_per_weight;
  const big = [
    ...(info.imatrix ? [] : [[report ? count(report.parameters) : "…", "parameters"], [report ? bits?.toFixed(2) ?? "–" : "…", "bits per weight"]]),
    [bytes(sizeOf(info)), "on disk"],
    [whole(info.tensors), info.tensors === 1 ? "tensor" : "tensors"],
    m.context_length ? [whole(m.context_length), "tokens of context"] : null,
  ].filter(Boolean);
  return html`<${Section}>
    <div class="figures">${big.map(([value, what]) => html`<div><b><${Amount} text=${value} /></b><span>${what}</span></div>`)}</div>
    <${Facts} rows=${[
      ["Name", m.name && html`<${Name} text=${m.name} />`],
      ["Family", !info.imatrix && !info.adapter && data && (data.family ? html`<${Name} text=${data.family} />` : html`<span class="quiet">unknown</span>`)],
      ["Architecture", m.architecture && html`<${Name} text=${m.architecture} />`],
      ["Layers", m.layers && whole(m.layers)],
      ["Hidden size", m.hidden_size && whole(m.hidden_size)],
      ["Heads", m.heads && (m.kv_heads && m.kv_heads !== m.heads ? `${m.heads}, ${m.kv_heads} for keys and values` : String(m.heads))],
      ["Experts", m.experts && whole(m.experts)],
      ["Vocabulary", m.vocab_size && whole(m.vocab_size)],
      ["Tokenizer", m.tokenizer && visible(m.tokenizer.words ?? m.tokenizer.kind)],
      ["Quantization", m.quantization && visible(m.quantization.words ?? m.quantization.method)],
      ["Licence", data?.licence && html`<${Name} text=${data.licence} />`],
      ["Format", report ? `${report.format}${report.version ? ` version ${report.version}` : ""}${ALIGNED.has(report.format) ? `, aligned to ${plural(report.alignment, "byte")}` : ""}` : info.format],
    ]} /><//>`;
}

function Shares({ title, rows, detail }) {
  return html`<${Section} title=${title}><${StackedBar} label=${title} rows=${rows} detail=${detail} /><//>`;
}

/** verify and scan, which read more than headers, so they come later. The worst is first; what is good counts for less
 * beside it. */
function Findings({ state, open }) {
  const data = state?.data;
  if (!data) return html`<${Section} title="Findings"><${Waiting} state=${state ?? {}} what="Checking" /><//>`;
  const worst = data.reports[0][0];
  return html`<${Section} title="Findings">
    <p class="verdicts">${data.reports.map(([level, report, verdict]) => html`<${Chip} kind=${level === "ok" && worst !== "ok" ? "" : level}>${report}: ${verdict.replaceAll(/[-_]/g, " ")}<//>`)}</p>
    <ul class="findings" tabindex="0" aria-label="Findings">
      ${data.findings.map((f) => html`<li><${Chip} kind=${f.level}>${f.word.replaceAll("-", " ")}<//> ${message(f.message)}${f.tensor && html` <${Name} text=${f.tensor} />`} <small>${f.rule}</small>${canOpen(f.step) && html` <button type="button" class="small" onClick=${() => open(f.step)}>Show step ${f.step.number}</button>`}</li>`)}
    </ul>
    ${data.more > 0 && html`<p class="quiet">and ${plural(data.more, "more finding")}</p>`}
    ${!data.findings.length && html`<p class="quiet">No findings${data.reports.every(([level]) => level === "ok") ? "" : ", and not everything could be checked"}.</p>`}<//>`;
}

function Files({ info, report }) {
  const rows = report?.files.map((f, i) => ({ ...f, nbytes: filesOf(info)[i]?.size ?? f.nbytes })) ?? filesOf(info).map(({ name, size }) => ({ path: name, nbytes: size }));
  return html`<${Section} title=${plural(rows.length, "file")}>
    <div class="scroll short" tabindex="0" role="region" aria-label="Files"><table><thead><tr><th>name</th><th class="n">size</th><th class="n">tensors</th></tr></thead><tbody>
    ${rows.map((f) => html`<tr><th scope="row"><${Name} text=${f.path} /></th><td class="n"><${Amount} text=${bytes(f.nbytes)} /></td><td class="n">${f.tensors === undefined ? "…" : whole(f.tensors)}</td></tr>`)}
    </tbody></table></div><//>`;
}

function Metadata({ model }) {
  return html`<${Answer} name="metadata" given=${{ model }}>${(data) => {
    const keys = Object.keys(data);
    return keys.length > 0 && html`<${Section} title="Metadata" note=${plural(keys.length, "key")}>
      <div class="scroll tall" tabindex="0" role="region" aria-label="Metadata"><table class="keys"><thead><tr><th>key</th><th>value</th></tr></thead><tbody>
      ${keys.map((k) => html`<tr><th scope="row"><${Name} text=${k} /></th><td><${Value} value=${data[k]} /></td></tr>`)}
      </tbody></table></div><//>`;
  }}<//>`;
}

function Value({ value }) {
  if (typeof value === "string") {
    return value.length > 160 ? html`<details><summary><${Name} text=${value.slice(0, 120)} /> …</summary><pre dir="ltr">${value.split("\n").map(visible).join("\n")}</pre></details>` : html`<${Name} text=${value} />`;
  }
  if (value && typeof value === "object" && "first" in value) {
    return html`<span class="quiet">${whole(value.length)} × ${value.array}:</span> <${Name} text=${value.first.map((v) => (typeof v === "number" ? number(v) : JSON.stringify(v))).join(", ")} />${value.first.length < value.length && " …"}`;
  }
  return html`<${Name} text=${typeof value === "number" ? number(value, 7) : JSON.stringify(value)} />`;
}
