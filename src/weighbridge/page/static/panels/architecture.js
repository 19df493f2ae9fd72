// One drawing of the model: what comes before the layers, each kind of layer with what it consists of and how often it
// occurs, what comes after; and what a token of context costs.
import { html, useMemo } from "../vendor/htm-preact.js";
import { partColor } from "../colors.js";
import { bytes, bytesRange, count, percent, plural, shape, visible, whole } from "../text.js";
import { Answer, Facts, Name, Section } from "../ui.js";

export function Architecture({ model, models, list, go }) {
  const { architecture, tokenizer } = models[model].facts;
  return html`<${Answer} name="architecture" given=${{ model }} what="Reading roles">${({ drawing, cache, reason }) => html`
    <${Drawing} drawing=${drawing} list=${list} go=${go} />${(cache || architecture || tokenizer) && html`<${Cache} cache=${cache} reason=${reason} />`}`}<//>`;
}

function Drawing({ drawing, list, go }) {
  const { before, groups, after, family, architecture } = drawing;
  const layers = groups.reduce((n, g) => n + g.layers.length, 0);
  const total = [before, ...groups, after].flatMap((g) => g.boxes).reduce((n, box) => n + box.total_nbytes, 0);
  const find = (role, layer) => list?.length !== undefined && go({ panel: "tensors", tensor: list.layer.findIndex((l, i) => l === layer && list.roles[list.role[i]] === role) });
  const title = family ? html`<span>Family <${Name} text=${family} />${architecture && architecture !== family && html` <small><${Name} text=${architecture} /></small>`}</span>` : "Unknown family";
  const parts = (group, whole) => partsOf(group).map((part) => html`<${Box} part=${part} each=${group.parts[part.name]} of=${whole} find=${(role) => find(role, group.layers[0] ?? -1)} />`);
  return html`<${Section} title=${title} note=${layers > 0 && plural(layers, "layer")}>
    <div class="flow">
      ${parts(before, total)}
      ${groups.map((group) => {
        const weights = group.boxes.reduce((n, b) => n + b.parameters, 0);
        return html`<div class="layer"><div class="times-bar"><b>× ${group.layers.length}</b><span class="quiet">${group.layers.length === 1 ? "layer" : "layers"} ${ranges(group.layers)}</span><span class="quiet">${count(weights)} weights, ${bytesRange(group.nbytes)}${group.layers.length > 1 ? " each" : ""}</span></div>
          ${parts(group, group.boxes.reduce((n, b) => n + b.total_nbytes, 0))}</div>`;
      })}
      ${parts(after, total)}
    </div><//>`;
}

/** The boxes of a group by the part of the model, in the group's order. */
function partsOf(group) {
  const parts = new Map();
  for (const box of group.boxes) parts.set(box.part, [...(parts.get(box.part) ?? []), box]);
  return [...parts].map(([name, boxes]) => ({ name, boxes }));
}

/** The roles of one part. */
function Box({ part, each, of, find }) {
  const weights = part.boxes.reduce((n, b) => n + b.parameters, 0), size = part.boxes.reduce((n, b) => n + b.total_nbytes, 0);
  return html`<div class="box" style=${{ "--part": partColor(part.name) }}><h3>${part.name} <small>${count(weights)} weights, ${bytesRange(each)}, ${percent(size / Math.max(of, 1)).replace(" %", "\u00a0%")}</small></h3>
    <ul>${part.boxes.map((r) => html`<li><button type="button" class="plain" onClick=${() => find(r.role)}><${Name} text=${r.role.replace(/^.*\.\*\./, "")} /></button>
      <span>${r.shape ? shape(r.shape) : "of several shapes"}${r.count > 1 ? html` <b class="times">× ${r.count}</b>` : ""}</span><span class="quiet">${r.dtypes.join(", ")}</span><span class="quiet n">${bytesRange(r.nbytes)}</span></li>`)}</ul></div>`;
}

/** What the context costs beside the weights. */
function Cache({ cache, reason }) {
  const kinds = useMemo(() => (cache ? kindsOf(cache.layers) : []), [cache]);
  if (!cache) return html`<${Section} title="Cache of keys and values"><p class="quiet">Not known: ${visible(reason)}.</p><//>`;
  if (!cache.total) return html`<${Section} title="Cache of keys and values"><p class="quiet">None: the model reads its whole text at once.</p><//>`;
  return html`<${Section} title="Cache of keys and values" note=${`in ${cache.dtype}, as llama.cpp allocates it`}>
    <div class="figures tight">${cache.nbytes > 0 && html`<div><b>${bytes(cache.nbytes)}</b><span>per token of context</span></div>`}<div><b>${bytes(cache.total)}</b><span>for ${whole(cache.context)} tokens</span></div></div>
    ${(kinds.length > 1 || !cache.nbytes) && html`<div class="scroll" tabindex="0" role="region" aria-label="Cache by layer"><table class="narrow"><thead><tr><th>layers</th><th class="n">per token</th><th class="n">within the window</th><th class="n">per sequence</th></tr></thead><tbody>
      ${kinds.map(([layers, c]) => html`<tr><th scope="row">${ranges(layers)}</th><td class="n">${c.nbytes ? bytes(c.nbytes) : "–"}</td><td class="n">${c.sliding ? `${bytes(c.sliding)}, ${whole(c.window)} tokens` : "–"}</td><td class="n">${c.state ? bytes(c.state) : "–"}</td></tr>`)}</tbody></table></div>`}<//>`;
}

/** Layers that cost the same, together. */
function kindsOf(layers) {
  const kinds = new Map();
  for (const cost of layers) {
    const key = `${cost.nbytes} ${cost.sliding} ${cost.window} ${cost.state}`;
    if (!kinds.has(key)) kinds.set(key, [[], cost]);
    kinds.get(key)[0].push(cost.layer);
  }
  return [...kinds.values()];
}

/** [0, 1, 3] -> `0–1, 3`. */
function ranges(numbers) {
  const out = [];
  for (const n of numbers) {
    if (out.length && out.at(-1)[1] === n - 1) out.at(-1)[1] = n;
    else out.push([n, n]);
  }
  const text = out.map(([a, b]) => (a === b ? a : `${a}–${b}`));
  return text.length > 8 ? `${text.slice(0, 8).join(", ")} …` : text.join(", ");
}
