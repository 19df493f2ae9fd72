// How the models are related: which was made from which, by samples of their weights, drawn as a family tree.
import { html } from "../vendor/htm-preact.js";
import { Scatter } from "../scatter.js";
import { bytes, number, percent, plural, sizeOf, visible } from "../text.js";
import { Empty, Name, Section, useAnswer, Waiting } from "../ui.js";

export function Lineage({ all, go }) {
  const state = useAnswer("lineage", {});
  if (!state.data) return html`<${Section} title="Family tree"><${Waiting} state=${state} what="Comparing samples of the weights" /><//>`;
  const { rows, pairs, apart, sentence, remarks, bytes_read: read } = state.data;
  const show = (a, b, panel) => go({ panel, a, b: b ?? "none", model: undefined, tensor: undefined, at: undefined, file: undefined });
  return html`<${Section} title="Family tree" note=${`by samples of ${bytes(read)}`}>
      ${sentence && html`<p class="sentence">${visible(sentence)}.</p>`}
      <${Tree} all=${all} data=${state.data} roots=${rows.filter((row) => row.above === null)} show=${show} label="Family tree" />
      <p class="keys-of">${rows.some((row) => row.is_parent) && html`<span><i class="way"></i>made from the one above</span>`}${rows.some((row) => row.above !== null && !row.is_parent) && html`<span><i class="way near"></i>nearest relative, not known to be made from the one above</span>`}</p>
      ${remarks.map((text) => html`<p class="quiet">${visible(text)}</p>`)}<//>
    ${all.length > 2 && html`<${Sizes} all=${all} data=${state.data} show=${show} />`}
    <${Pairs} all=${all} pairs=${pairs} apart=${apart} show=${show} />`;
}

/** Models, each with what hangs on it below. */
function Tree({ all, data, roots, show, label }) {
  return html`<ul class="tree" aria-label=${label}>${roots.map((row) => {
    const below = data.rows.filter((other) => other.above === row.model);
    return html`<li class=${row.above === null ? "root" : row.is_parent ? "" : "near"}><${Node} all=${all} row=${row} model=${data.models[row.model]} show=${show} />
      ${below.length > 0 && html`<${Tree} all=${all} data=${data} roots=${below} show=${show} />`}</li>`;
  })}</ul>`;
}

/** A model, which leads to its summary; and its relation to the one above, which leads to their differences. */
function Node({ all, row, model, show }) {
  return html`<div class="member"><button type="button" class="plain" title=${visible(model.path)} onClick=${() => show(row.model, null, "summary")}><${Name} text=${all[row.model].name} /></button>
    <span class="quiet">${visible(row.text)}</span>
    ${row.above !== null && html`<button type="button" class="small" onClick=${() => show(row.above, row.model, "diff")}>Differences</button>`}</div>`;
}

/** The sizes of the models of the largest family against their distance from its root. */
function Sizes({ all, data, show }) {
  const families = data.rows.filter((row) => row.above === null).map(({ model: root }) => [root, data.pairs.filter((p) => (p.a === root || p.b === root) && p.distance !== null)]);
  const [root, pairs] = families.sort((a, b) => b[1].length - a[1].length)[0];
  if (pairs.length < 2) return null;
  const points = pairs.map((p) => [p.a === root ? p.b : p.a, p.distance]).map(([model, distance]) => {
    const size = sizeOf(all[model]);
    return { x: size, y: distance, name: all[model].name, label: `${all[model].name}: ${bytes(size)}, distance ${number(distance, 3)}`, color: "var(--c1)", open: () => show(root, model, "diff") };
  });
  return html`<${Section} title="Size against distance" note=${html`from <${Name} text=${all[root].name} />`}><${Scatter} points=${points} label="Size against distance" xTitle="size of the model" yTitle="norm of the difference, relative to the weights’" xText=${bytes} yText=${(power) => `${number(10 ** (power + 2), 3)} %`} names /><//>`;
}

/** Every two models that are related. */
function Pairs({ all, pairs, apart, show }) {
  return html`<${Section} title="Relations" note=${apart ? `${plural(apart, "pair")} without a common origin` : ""}>${!pairs.length ? html`<${Empty}>No two of the models have a common origin.<//>` : html`
    <div class="scroll tall" tabindex="0" role="region" aria-label="Relations"><table class="relations"><thead><tr><th>models</th><th>relation</th><th>made from</th><th class="n">distance</th></tr></thead><tbody>
    ${pairs.map((p) => html`<tr><th scope="row"><button type="button" class="plain" onClick=${() => show(p.a, p.b, "summary")}><${Name} text=${all[p.a].name} /> and <${Name} text=${all[p.b].name} /></button></th><td>${visible(p.text)}</td>
      <td>${p.parent === null ? html`<span class="quiet">unknown</span>` : html`<${Name} text=${all[p.parent].name} />`}</td><td class="n">${p.distance === null ? "" : percent(p.distance)}</td></tr>`)}</tbody></table></div>`}<//>`;
}
