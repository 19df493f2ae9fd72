// The operators of a layer as a drawing: what each kind of layer computes, which layers are of it, and the tensors of what is
// chosen in it.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { partColor } from "../colors.js";
import { bytes, kindOf, plural, shape, visible } from "../text.js";
import { Answer, Choice, Name, Section } from "../ui.js";

const WIRING = {
  computed: "Weighbridge computes models of this family by this graph.",
  declared: "The connections are declared for the family, as its reference code has them.",
};
const PARTS = { attention: "attention", cross: "attention", mlp: "feed forward", moe: "experts", ssm: "state space", delta: "state space", conv: "state space", embed: "embedding", position: "embedding", types: "embedding", head: "output" };

export function Graph({ model, models, lists, place, go }) {
  const both = models.map((_, i) => i).filter((i) => kindOf(models[i]) === "model"), shown = both.length ? both : [model];
  return html`<div class=${shown.length > 1 ? "columns graphs" : ""}>${shown.map((m) => html`<${Of} key=${m} model=${m} title=${models.length > 1 ? `${"AB"[m]}: ` : ""} list=${lists[m]} place=${place} go=${go} />`)}</div>`;
}

function Of({ model, title, list, place, go }) {
  return html`<div class="stacked"><${Answer} name="graph" given=${{ model }} what="Reading the family’s table">${({ graph, reason }) => (graph === null
    ? html`<${Section} title=${`${title}Operators of a layer`}><p class="quiet">Not known: ${visible(reason)}.</p><//>`
    : html`<${Graphs} graph=${graph} title=${title} list=${list} model=${model} place=${place} go=${go} />`)}<//></div>`;
}

function Graphs({ graph, title, list, model, place, go }) {
  const { kinds, before, after, notes } = graph;
  const [kind, setKind] = useState(Math.min(Number(place.kind ?? 0) || 0, Math.max(kinds.length - 1, 0)));
  const [chosen, setChosen] = useState(null);
  const stages = [["Before the layers", before], ["A layer", kinds[kind]?.stage], ["After the layers", after]].filter(([, stage]) => stage?.nodes.length);
  const choose = (k) => (setKind(k), setChosen(null), go({ kind: k }));
  const layer = chosen && chosen.stage === "A layer" ? kinds[kind].layers[0] : -1;
  return html`
    <${Section} title=${html`<span>${title}Family <${Name} text=${graph.family} /></span>`} note=${plural(kinds.reduce((n, k) => n + k.layers.length, 0), "layer")}>
      ${kinds.length > 1 && html`<${Layers} kinds=${kinds} kind=${kind} choose=${choose} />`}
      ${kinds.length === 1 && html`<p class="quiet">All layers have the same operators.</p>`}
      ${notes.map((note) => html`<p class="quiet">${visible(note)}</p>`)}<//>
    <div class="split graph">
      <div class="grow stacked">${stages.map(([name, stage]) => html`<${Section} key=${`${name}${kind}`} title=${name} note=${name === "A layer" ? kinds[kind].range : ""}>
        <${Drawing} stage=${stage} label=${title + name} chosen=${chosen?.stage === name ? chosen.node.id : null} choose=${(node) => setChosen({ stage: name, node })} />
        ${name === "A layer" && html`<p class="quiet">${WIRING[stage.wiring]}</p>`}<//>`)}</div>
      <${Details} label=${`${title}Operator`} chosen=${chosen?.node} layer=${layer} stack=${kinds[kind]?.stack} list=${list} model=${model} go=${go} />
    </div>`;
}

/** Which layer is of which kind: a cell for each, and the kinds in words. */
function Layers({ kinds, kind, choose }) {
  const cells = useMemo(() => kinds.flatMap((k, i) => k.layers.map((layer) => ({ layer, stack: k.stack, i }))).sort((a, b) => (a.stack < b.stack ? 1 : a.stack > b.stack ? -1 : a.layer - b.layer)), [kinds]);
  return html`<div class="pattern" aria-hidden="true">${cells.map(({ layer, stack, i }) => html`<i class=${i === kind ? "on" : ""} style=${{ "--kind": `var(--c${(i % 8) + 1})` }} title=${`${stack} layer ${layer}: ${kinds[i].title}`} onClick=${() => choose(i)}></i>`)}</div>
    <ul class="kinds" aria-label="Kinds of layers">${kinds.map((k, i) => html`<li><button type="button" aria-pressed=${String(i === kind)} onClick=${() => choose(i)}>
      <i class="dot" style=${{ background: `var(--c${(i % 8) + 1})` }}></i><b>× ${k.layers.length}</b> <span>${visible(k.title)}</span> <small>${k.range}</small></button></li>`)}</ul>`;
}

/** A stage as SVG. Operators with tensors are buttons. */
function Drawing({ stage, label, chosen, choose }) {
  const box = useRef(null);
  useEffect(() => {
    if (box.current) box.current.scrollLeft = (box.current.scrollWidth - box.current.clientWidth) / 2;
  }, [stage]);
  return html`<div class="scroll" ref=${box} tabindex="0" role="region" aria-label=${`${label}, drawn`}>
    <svg class="operators" width=${stage.width} style=${{ width: `${stage.width}px`, minWidth: `${Math.round(stage.width * 0.72)}px` }} viewBox=${`0 0 ${stage.width} ${stage.height}`} role="group" aria-label=${`Operators: ${label}`}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0 1L7 4L0 7" class="tip" /></marker></defs>
      ${stage.frames.map((f) => html`<g class="frame"><rect x=${f.x} y=${f.y} width=${f.width} height=${f.height} rx="11" /><text x=${f.x + 11} y=${f.y + 17}>${visible(f.title)}</text></g>`)}
      ${stage.edges.map((e) => html`<path class=${e.residual ? "edge residual" : "edge"} d=${e.path} marker-end="url(#tip)" />`)}
      ${stage.labels.map((l) => html`<text class="shape" x=${l.x} y=${l.y}>${l.text}</text>`)}
      ${stage.nodes.map((n) => html`<${Operator} key=${n.id} node=${n} chosen=${n.id === chosen} choose=${choose} />`)}
    </svg></div>`;
}

function Operator({ node, chosen, choose }) {
  const { x, y, width, height, title, lines, kind, roles } = node;
  const middle = x + width / 2;
  const first = lines.length ? y + 18 : y + height / 2 + 4.5;
  const active = roles.length > 0;
  const press = (e) => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), choose(node));
  const words = `${title}${lines.length ? `: ${lines.join(", ")}` : ""}`;
  const look = html`<rect x=${x} y=${y} width=${width} height=${height} rx=${kind === "sign" ? 12 : kind === "part" || kind === "outside" || kind === "activation" ? height / 2 : 8} />
    ${active && kind !== "sign" && html`<path class="mark" d=${`M${x + 5} ${y + 8}V${y + height - 8}`} />`}
    <text x=${middle} y=${kind === "sign" ? y + 17 : first} class="title">${visible(title)}</text>
    ${lines.map((line, i) => html`<text x=${middle} y=${first + 14.5 * (i + 1)}>${visible(line)}</text>`)}`;
  const style = { "--part": partColor(kind === "norm" ? "norms" : PARTS[node.part] ?? "other") };
  return active
    ? html`<g class=${`node ${kind}${chosen ? " chosen" : ""}`} style=${style} role="button" tabindex="0" aria-pressed=${String(chosen)} aria-label=${visible(words)} onClick=${() => choose(node)} onKeyDown=${press}>${look}</g>`
    : html`<g class=${`node plainly ${kind}`}>${look}</g>`;
}

/** The tensors of the chosen operator, in the file's names. */
function Details({ label, chosen, layer, stack, list, go }) {
  const rows = useMemo(() => (chosen && list?.length !== undefined ? tensorsOf(list, chosen.roles, layer, stack) : []), [chosen, layer, list]);
  if (!chosen) return html`<aside class="card side empty" aria-label=${label}><p class="quiet">Choose an operator to see its tensors.</p></aside>`;
  return html`<aside class="card side" aria-label=${label}><h2>${visible(chosen.title)}</h2>
    ${chosen.facts.map((fact) => html`<p>${visible(fact)}</p>`)}
    <p class="quiet">${plural(rows.length, "tensor")}${layer >= 0 ? ` in layer ${layer}` : ""}</p>
    <ul class="weights">${rows.slice(0, 40).map((t) => html`<li><button type="button" class="plain" onClick=${() => go({ panel: "tensors", tensor: t.number })}><${Name} text=${t.name} /></button>
      <small>${shape(t.shape)}, ${t.dtype}, ${bytes(t.nbytes)}</small></li>`)}${rows.length > 40 && html`<li class="quiet">and ${plural(rows.length - 40, "more")}</li>`}</ul></aside>`;
}

/** The tensors of a layer that have one of these roles, or that one is part of. */
function tensorsOf(list, roles, layer, stack) {
  const full = new Set(roles.flatMap((role) => [role, stack ? `${stack}.${role}` : role]));
  const wanted = new Set(list.roles.map((role, i) => (role.split("|").some((part) => full.has(part)) ? i : -1)).filter((i) => i >= 0));
  const found = [];
  for (let i = 0; i < list.length; i++) if (list.layer[i] === layer && wanted.has(list.role[i])) found.push(list.at(i));
  return found;
}
