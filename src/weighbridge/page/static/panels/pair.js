// Both models of a comparison beside each other: numbers of the summary, tensors by role, architecture, tokens.
import { html, useMemo } from "../vendor/htm-preact.js";
import { partColor } from "../colors.js";
import { algorithmOf, bytes, bytesRange, count, filesOf, plural, shape, sizeOf, visible, whole } from "../text.js";
import { Answer, broken, Chip, headsOf, Name, Section, useAnswer, Waiting } from "../ui.js";

/** Answers of both models given to `children`. */
function Both({ name, what, children }) {
  return html`<${Answer} name=${name} given=${{ model: 0 }} what=${what}>${(a) => html`<${Answer} name=${name} given=${{ model: 1 }} what=${what}>${(b) => children(a, b)}<//>`}<//>`;
}

/** Rows of [what, A, B, note], those that differ marked. Values are texts; empty ones are dashes. `numbers`: set below one
 * another. */
export function Compared({ rows, label, heads = ["A", "B"], numbers = false }) {
  const kept = rows.filter(([, a, b]) => (a ?? "") !== "" || (b ?? "") !== "");
  const value = (text) => ((text ?? "") === "" ? html`<span class="quiet">–</span>` : broken(visible(text)));
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class=${`compared${numbers ? " numbers" : ""}`}><thead><tr><th><span class="hidden">what</span></th>${heads.map((head) => html`<th>${head}</th>`)}</tr></thead><tbody>
    ${kept.map(([what, a, b, note]) => html`<tr class=${(a ?? "") === (b ?? "") ? "" : "differs"}><th scope="row">${what}</th><td>${value(a)}</td><td>${value(b)}${note && html` <small>${note}</small>`}${(a ?? "") !== (b ?? "") && html`<span class="hidden"> differs</span>`}</td></tr>`)}</tbody></table></div>`;
}

/** `B is 0.51 × A`, or nothing where that says nothing. */
const times = (a, b) => (a > 0 && b > 0 && a !== b ? `${(b / a).toPrecision(3)}\u00a0×\u00a0A` : "");
const texts = (value) => (value === null || value === undefined ? "" : Array.isArray(value) ? value.join(", ") : typeof value === "number" ? whole(value) : String(value));

const tokenizer = ({ tokenizer: found }) => (!found || found.kind === "none" ? "" : found.words ?? found.kind);

export function SummaryOfTwo({ models }) {
  return html`<${Section} title="Both models"><${Both} name="summary" what="Counting">${(a, b) => html`<${SummaryRows} models=${models} a=${a} b=${b} /><${Parts} a=${a} b=${b} />`}<//><//>`;
}

function SummaryRows({ models, a, b }) {
  const [ra, rb] = [a.report, b.report], [ma, mb] = [ra.model ?? {}, rb.model ?? {}];
  const checks = [useAnswer("findings", { model: 0 }), useAnswer("findings", { model: 1 })];
  const verdict = ({ data, error }, of) => data?.reports.find(([, report]) => report === of)?.[2].replaceAll(/[-_]/g, " ") ?? (error ? "unknown" : "…");
  const row = (what, key) => [what, texts(ma[key]), texts(mb[key])];
  return html`<${Compared} label="Both models" heads=${headsOf(models)} rows=${[
    ["Parameters", count(ra.parameters), count(rb.parameters), times(ra.parameters, rb.parameters)],
    ["Bits per weight", ra.bits_per_weight?.toFixed(2), rb.bits_per_weight?.toFixed(2)],
    ["On disk", bytes(sizeOf(models[0])), bytes(sizeOf(models[1])), times(sizeOf(models[0]), sizeOf(models[1]))],
    ["Tensors", whole(models[0].tensors), whole(models[1].tensors)],
    ["Files", whole(filesOf(models[0]).length), whole(filesOf(models[1]).length)],
    ["Format", models[0].format, models[1].format],
    ["Number types", a.dtypes.map((d) => d.name).join(", "), b.dtypes.map((d) => d.name).join(", ")],
    ["Quantization", ma.quantization?.words ?? ma.quantization?.method, mb.quantization?.words ?? mb.quantization?.method],
    ["Family", a.family, b.family],
    row("Architecture", "architecture"), row("Layers", "layers"), row("Hidden size", "hidden_size"), row("Heads", "heads"), row("Heads of keys and values", "kv_heads"),
    row("Experts", "experts"), row("Vocabulary", "vocab_size"), row("Tokens of context", "context_length"),
    ["Tokenizer", tokenizer(ma), tokenizer(mb)],
    ["Licence", a.licence, b.licence],
    ["verify", verdict(checks[0], "verify"), verdict(checks[1], "verify")],
    ["scan", verdict(checks[0], "scan"), verdict(checks[1], "scan")],
  ]} />`;
}

/** Bytes by part of the model, both as bars of one scale. */
function Parts({ a, b }) {
  const of = (side) => new Map(side.parts.map(({ part }) => [part.name, part]));
  const [pa, pb] = [of(a), of(b)];
  const names = [...new Set([...pa.keys(), ...pb.keys()])];
  const most = Math.max(1, ...[...pa.values(), ...pb.values()].map((part) => part.nbytes));
  const bar = (part, name) => part?.nbytes > 0 && html`<i class="bar" style=${{ width: `${((part?.nbytes ?? 0) / most) * 100}%`, background: partColor(name) }}></i>`;
  return html`<h3>Bytes by part</h3><table class="paired"><thead class="hidden"><tr><th>part</th><th>bars</th><th>bytes of A and B</th></tr></thead><tbody>${names.map((name) => html`<tr><th scope="row">${name}</th>
    <td class="wide">${bar(pa.get(name), name)}${bar(pb.get(name), name)}</td><td class="n"><span class="letter quiet">A</span>${bytes(pa.get(name)?.nbytes ?? 0)}<br/><span class="letter quiet">B</span>${bytes(pb.get(name)?.nbytes ?? 0)}</td></tr>`)}</tbody></table>`;
}

export function TensorsOfTwo({ lists }) {
  const [a, b] = [lists[0], lists[1]];
  const rows = useMemo(() => (a?.length !== undefined && b?.length !== undefined ? byRole(a, b) : null), [a, b]);
  if (!rows) return html`<${Section} title="Tensors of both, by role"><${Waiting} state=${[a, b].find((l) => l?.error) ?? {}} what="Reading names" /><//>`;
  const differ = rows.filter((r) => r.differs).length;
  return html`<${Section} title="Tensors of both, by role" note=${`${plural(rows.length, "role")}, ${whole(differ)} stored differently`}>
    <div class="scroll tall" tabindex="0" role="region" aria-label="Tensors of both, by role"><table class="roles"><thead><tr><th>role</th><th class="n">A</th><th>type</th><th>shape</th><th class="n">size</th><th class="n">B</th><th>type</th><th>shape</th><th class="n">size</th><th class="n">B / A</th></tr></thead><tbody>
      ${rows.map((r) => html`<tr class=${r.differs ? "differs" : ""}><th scope="row"><i class="dot" style=${{ background: partColor(r.part) }}></i><${Name} text=${r.role} /></th>${[r.a, r.b].map((s) => html`<td class="n">${s ? whole(s.tensors) : ""}</td><td>${s ? [...s.types].join(", ") : html`<span class="quiet">not there</span>`}</td><td>${s ? shapes(s.shapes) : ""}</td><td class="n">${s ? bytes(s.nbytes) : ""}</td>`)}
        <td class="n">${r.a?.nbytes && r.b ? `${((r.b.nbytes / r.a.nbytes) * 100).toFixed(0)} %` : ""}</td></tr>`)}</tbody></table></div><//>`;
}

const shapes = (found) => (found.size === 1 ? shape(JSON.parse([...found][0])) : `${found.size} shapes`);

/** The tensors of both models by role: [{role, part, a, b, differs}], in the order of A, then what only B has. */
export function byRole(a, b) {
  const sums = (list) => {
    const out = new Map();
    for (let i = 0; i < list.length; i++) {
      const role = list.roles[list.role[i]];
      const sum = out.get(role) ?? { tensors: 0, nbytes: 0, types: new Set(), shapes: new Set(), part: list.parts[list.part[i]] };
      sum.tensors++;
      sum.nbytes += Number(list.nbytes[i]);
      sum.types.add(list.dtypes[list.dtype[i]]);
      if (sum.shapes.size < 9) sum.shapes.add(JSON.stringify(list.shapes[list.shape[i]]));
      out.set(role, sum);
    }
    return out;
  };
  const [of, other] = [sums(a), sums(b)];
  const same = (x, y) => x && y && x.tensors === y.tensors && x.nbytes === y.nbytes && [...x.types].join() === [...y.types].join() && [...x.shapes].join() === [...y.shapes].join();
  return [...new Set([...of.keys(), ...other.keys()])].map((role) => ({ role, part: (of.get(role) ?? other.get(role)).part, a: of.get(role), b: other.get(role), differs: !same(of.get(role), other.get(role)) }));
}

export function ArchitectureOfTwo({ models }) {
  return html`<${Section} title="Both architectures"><${Both} name="architecture" what="Reading roles">${(a, b) => html`<${Compared} label="Both architectures" heads=${headsOf(models)} rows=${architectureRows(models, a, b)} />`}<//><//>`;
}

function architectureRows(models, a, b) {
  const sides = [a, b], facts = models.map((m) => m.facts);
  const of = (what, value) => [what, ...sides.map((side, i) => value(side, facts[i]))];
  const each = ({ boxes, nbytes }) => `${count(boxes.reduce((n, box) => n + box.parameters, 0))} weights, ${bytesRange(nbytes)}`;
  const kinds = Math.max(a.drawing.groups.length, b.drawing.groups.length);
  return [
    of("Family", ({ drawing }) => drawing.family), of("Class", ({ drawing }) => drawing.architecture),
    of("Layers", ({ drawing }) => whole(drawing.groups.reduce((n, g) => n + g.layers.length, 0))),
    of("Hidden size", (_, f) => texts(f.hidden_size)), of("Heads", (_, f) => texts(f.heads)), of("Heads of keys and values", (_, f) => texts(f.kv_heads)), of("Experts", (_, f) => texts(f.experts)),
    of("Before the layers", ({ drawing }) => (drawing.before.boxes.length ? each(drawing.before) : "")),
    ...Array.from({ length: Math.min(kinds, 12) }, (_, i) => of(kinds === 1 ? "A layer" : `Layers of kind ${i + 1}`, ({ drawing }) => (drawing.groups[i] ? `× ${drawing.groups[i].layers.length}: ${each(drawing.groups[i])}` : ""))),
    of("After the layers", ({ drawing }) => (drawing.after.boxes.length ? each(drawing.after) : "")),
    of("Cache per token", ({ cache }) => (cache ? bytes(cache.nbytes) : "")), of("Cache of the whole context", ({ cache }) => (cache?.total ? `${bytes(cache.total)} for ${whole(cache.context)} tokens` : "")),
  ];
}

export function TokensOfTwo({ models }) {
  if (models.some(({ facts }) => facts.tokenizer?.kind === "none")) return null;
  return html`<${Answer} name="token_pair" given=${{}} what="Comparing tokens">${({ pair, reason }) => (pair === null ? html`<${Section} title="Both tokenizers"><p class="quiet">Not compared: ${visible(reason)}.</p><//>` : html`
    <${Section} title="Both tokenizers" note=${pair.tables.length + pair.special.length ? plural(pair.tables.length + pair.special.length, "difference") : html`<${Chip} kind="ok">the same<//>`}>
      <${Compared} label="Both tokenizers" heads=${headsOf(models)} rows=${[
        ["Algorithm", ...pair.algorithm.map((name, i) => algorithmOf(models[name === pair.algorithm[0] ? 0 : i].facts.tokenizer, name))], ["Pre-tokenizer", ...pair.pre], ["Tokens", ...pair.sizes.map(whole)], ["Only in this one", ...pair.only.map(whole)],
        ...pair.roles.map(({ role, a, b }) => [`Token for ${role}`, ...[a, b].map((t) => (t ? `${t[0]} ${t[1]}` : ""))]),
      ]} />
      <p>${plural(pair.same, "token")} with the same number in both${pair.moved ? `, ${whole(pair.moved)} with another` : ""}.</p>
      ${[...pair.tables, ...pair.special].map((text) => html`<p class="quiet">${visible(text)}</p>`)}
      ${pair.first.some((tokens) => tokens.length) && html`<div class="columns">${pair.first.map((tokens, i) => tokens.length > 0 && html`<div><h3>Only in ${"AB"[i]}${pair.only[i] > tokens.length ? `, the first ${tokens.length}` : ""}</h3><p>${tokens.map(([id, text]) => html`<span class="token" title=${`token ${id}`}>${visible(text)}</span> `)}</p></div>`)}</div>`}<//>`)}<//>`;
}
