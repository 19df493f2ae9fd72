// One drawing of the model: what comes before the layers, each kind of layer with what it consists of and how often it
// occurs, what comes after.
import { html, useMemo } from "../vendor/htm-preact.js";
import { partColor } from "../colors.js";
import { bytes, count, percent, plural, shape } from "../text.js";
import { Name, Section } from "../ui.js";

const ORDER = ["embedding", "norms", "attention", "state space", "feed forward", "experts", "output", "other"];

export function Architecture({ list, go }) {
  const model = useMemo(() => drawn(list), [list]);
  return html`<${Section} title=${list.family ? html`<span>Family <${Name} text=${list.family} /></span>` : "Of no family that is known"} note=${plural(model.layers, "layer")}>
    <div class="flow">
      ${model.before.map((box) => html`<${Box} box=${box} total=${model.nbytes} go=${go} />`)}
      ${model.kinds.map((kind) => html`<div class="layer"><div class="times-bar"><b>× ${kind.layers.length}</b><span class="quiet">${plural(kind.layers.length, "layer")} ${ranges(kind.layers)}</span><span class="quiet">${count(kind.parameters)} weights, ${bytes(kind.nbytes)} each</span></div>
        ${kind.boxes.map((box) => html`<${Box} box=${box} total=${model.nbytes / Math.max(model.layers, 1)} go=${go} />`)}</div>`)}
      ${model.after.map((box) => html`<${Box} box=${box} total=${model.nbytes} go=${go} />`)}
    </div><//>`;
}

/** The tensors of one part, role by role. */
function Box({ box, total, go }) {
  return html`<div class="box" style=${{ "--part": partColor(box.part) }}><h3>${box.part} <small>${count(box.parameters)} weights, ${bytes(box.nbytes)}, ${percent(box.nbytes / total)}</small></h3>
    <ul>${box.roles.map((r) => html`<li><button type="button" class="plain" onClick=${() => go({ panel: "tensors", tensor: r.first })}><${Name} text=${r.role} /></button>
      <span>${shape(r.shape)}${r.tensors > 1 ? html` <b class="times">× ${r.tensors}</b>` : ""}</span><span class="quiet">${r.dtypes.join(", ")}</span></li>`)}</ul></div>`;
}

/** The tensors by layer; layers of equal roles, shapes and types are one kind. */
function drawn(list) {
  const layers = new Map();
  for (let i = 0; i < list.length; i++) {
    if (!layers.has(list.layer[i])) layers.set(list.layer[i], []);
    layers.get(list.layer[i]).push(i);
  }
  const outside = boxes(list, layers.get(-1) ?? []);
  layers.delete(-1);
  const kinds = new Map();
  for (const [number, members] of [...layers].sort(([a], [b]) => a - b)) {
    const look = members.map((i) => `${list.role[i]}|${list.shape[i]}|${list.dtype[i]}`).sort().join(";");
    if (!kinds.has(look)) kinds.set(look, { layers: [], ...summed(list, members), boxes: boxes(list, members) });
    kinds.get(look).layers.push(number);
  }
  const first = outside.filter((b) => b.part === "embedding"), rest = outside.filter((b) => b.part !== "embedding");
  return { before: first, kinds: [...kinds.values()], after: rest, layers: layers.size, nbytes: list.nbytes.reduce((s, n) => s + Number(n), 0) };
}

function summed(list, members) {
  const sum = (column) => members.reduce((s, i) => s + Number(column[i]), 0);
  return { nbytes: sum(list.nbytes), parameters: sum(list.parameters) };
}

function boxes(list, members) {
  const parts = new Map(ORDER.map((part) => [part, []]));
  for (const i of members) parts.get(list.parts[list.part[i]])?.push(i);
  return [...parts].filter(([, found]) => found.length).map(([part, found]) => ({ part, ...summed(list, found), roles: roles(list, found) }));
}

function roles(list, members) {
  const found = new Map();
  for (const i of members) {
    const role = list.roles[list.role[i]];
    if (!found.has(role)) found.set(role, { role, first: i, shape: list.shapes[list.shape[i]], tensors: 0, dtypes: new Set() });
    found.get(role).tensors++;
    found.get(role).dtypes.add(list.dtypes[list.dtype[i]]);
  }
  return [...found.values()].map((r) => ({ ...r, dtypes: [...r.dtypes] }));
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
