// Layers by roles: what `wb view` can say of every tensor at once, as a table whose cells are coloured.
import { html } from "./vendor/htm-preact.js";
import { heat } from "./colors.js";
import { visible } from "./text.js";
import { Name } from "./ui.js";

/** Statistics that headers tell. */
export const IN_HEADERS = {
  bits: ["Bits per weight", (nbytes, parameters) => (parameters ? nbytes * 8 / parameters : null)],
  bytes: ["Bytes", (nbytes) => nbytes],
  parameters: ["Parameters", (_, parameters) => parameters],
};

/** {layers, roles, cells} of one of them, as the server gives the others. Experts and companions add up. */
export function fromColumns(list, statistic) {
  const sums = new Map(), layers = new Set(), roles = new Set();
  for (let i = 0; i < list.length; i++) {
    const layer = list.layer[i], role = list.roles[list.role[i]], key = `${layer}\0${role}`;
    layers.add(layer);
    roles.add(role);
    const [nbytes, parameters] = sums.get(key) ?? [0, 0];
    sums.set(key, [nbytes + Number(list.nbytes[i]), parameters + Number(list.parameters[i])]);
  }
  const rows = [...layers].sort((a, b) => a - b), columns = [...roles];
  const cell = (layer, role) => (sums.has(`${layer}\0${role}`) ? IN_HEADERS[statistic][1](...sums.get(`${layer}\0${role}`)) : null);
  return { layers: rows, roles: columns, cells: rows.map((layer) => columns.map((role) => cell(layer, role))) };
}

/** {layers, roles, cells, at} of rows with a layer and a role; `at(layer, role)` is the row. */
export function byPlace(rows, value) {
  const layers = [...new Set(rows.map((row) => row.layer))].sort((a, b) => a - b), roles = [...new Set(rows.map((row) => row.role))];
  const placed = new Map(rows.map((row) => [`${row.layer}\0${row.role}`, row])), at = (layer, role) => placed.get(`${layer}\0${role}`);
  const cell = (row) => (row ? value(row) : null);
  return { layers, roles, at, cells: layers.map((layer) => roles.map((role) => cell(at(layer, role)))) };
}

/** Without the roles that have no value in any layer. */
export function filled({ layers, roles, cells }) {
  const kept = roles.map((_, i) => i).filter((i) => cells.some((row) => row[i] !== null));
  return { layers, roles: kept.map((i) => roles[i]), cells: cells.map((row) => kept.map((i) => row[i])) };
}

/** A role as the head of a narrow column: broken at its dots, without the ending that nearly all have. */
function Role({ text }) {
  return html`<span title=${visible(text)}>${text.replace(/^.*\.\*\./, "").replace(/\.weight(\.in_sum2)?$/, "").split(".").map((word, i) => html`${i > 0 && html`.<wbr />`}<${Name} text=${word} />`)}</span>`;
}

/** The table. `show`: a value as text, by its layer and role; `pick(layer, role)` where a cell is chosen. `scale`: the maps that share its
 * colours. `plain`: whether a value has no colour. Dark is low, unless `worst` says that high values are what to look for. */
export function HeatTable({ data, show, pick, worst = "low", scale = [data], label = "Layers and roles", className = "", plain = () => false }) {
  const numbers = scale.flatMap(({ cells }) => cells.flat()).filter((v) => typeof v === "number");
  const low = numbers.reduce((a, b) => Math.min(a, b), Infinity), high = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
  const wide = low > 0 && high / low > 5;
  const share = (v) => (high === low ? 0.5 : wide ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low));
  return html`<div class=${`scroll heat ${className}`} tabindex="0" role="region" aria-label=${label}><table><thead><tr><th>layer</th>${data.roles.map((r) => html`<th scope="col"><${Role} text=${r} /></th>`)}</tr></thead><tbody>
    ${data.layers.map((layer, i) => html`<tr><th scope="row" class="n">${layer < 0 ? "–" : layer}</th>${data.cells[i].map((v, j) => {
      if (v === null) return html`<td></td>`;
      if (plain(v)) return html`<td class="n">${show(v, layer, data.roles[j])}</td>`;
      const at = typeof v === "number" ? share(v) : 1, { ground, text } = heat(worst === "high" ? 1 - at : at);
      return html`<td class=${`n${pick ? " can" : ""}`} style=${{ background: ground, color: text }} onClick=${pick && (() => pick(layer, data.roles[j]))}>${typeof v === "number" ? show(v, layer, data.roles[j]) : v}</td>`;
    })}</tr>`)}</tbody></table></div>`;
}
