// How two models are related: which was made from which, by samples of their weights, drawn as a small tree.
import { html } from "../vendor/htm-preact.js";
import { bytes, number, visible } from "../text.js";
import { Facts, Name, Section, useAnswer, Waiting } from "../ui.js";

export function Lineage() {
  const state = useAnswer("lineage", {});
  if (!state.data) return html`<${Section} title="Lineage"><${Waiting} state=${state} what="Comparing samples of both" /><//>`;
  const { report, sentence } = state.data, [pair] = report.pairs;
  return html`<${Section} title="Lineage" note=${`by samples of ${bytes(report.bytes_read)}`}>
    <p class="sentence">${visible(sentence)}.</p>
    <${Tree} report=${report} pair=${pair} />
    <${Facts} rows=${[["Relation", pair.relation.replaceAll("-", " ")], ["Cosine", number(pair.cosine, 5)], ["Distance", pair.distance === null ? null : `${number(pair.distance * 100, 3)} % of A’s norm`],
      ["Known from", pair.evidence], ["Rank", pair.rank], ["Changed", pair.targets.length ? html`<${Name} text=${pair.targets.join(", ")} />` : null, true]]} />
    ${[...report.contradictions, ...report.notes].map((text) => html`<p class="quiet">${visible(text)}</p>`)}<//>`;
}

/** Parent above child; two relatives of which neither is known to be the parent, with a dashed line. */
function Tree({ report, pair }) {
  const ordered = report.tree.map((branch) => report.models.find((m) => m.name === branch.name));
  const apart = report.tree.every((branch) => branch.above === null);
  const kind = apart ? "apart" : report.tree.at(-1).is_parent && pair.parent !== null ? "parent" : "kin";
  return html`<ol class=${`descent ${kind}`} aria-label="Family tree">${ordered.map((m, i) => html`<li><b><${Name} text=${m.name} /></b> <span class="quiet">${m.type}, ${m.layers} layers</span>
    ${i === 1 && kind !== "apart" && html`<span class="quiet">${kind === "parent" ? "made from the one above" : "a relative; which came first isn’t known"}</span>`}</li>`)}</ol>`;
}
