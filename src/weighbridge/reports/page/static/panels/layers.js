// A map of all layers.
import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { fromColumns, HeatTable, IN_HEADERS } from "../heatmap.js";
import { bytes, count, number } from "../text.js";
import { Section } from "../ui.js";

const SHOWN = { bytes, parameters: count };

export function Layers({ list, go }) {
  const [statistic, setStatistic] = useState("bits");
  const data = useMemo(() => fromColumns(list, statistic), [list, statistic]);
  const find = (layer, role) => go({ panel: "tensors", tensor: list.layer.findIndex((l, i) => l === layer && list.roles[list.role[i]] === role) });
  return html`<${Section} title="Layers and roles" note=${html`<select aria-label="Statistic" value=${statistic} onChange=${(e) => setStatistic(e.target.value)}>
    ${Object.entries(IN_HEADERS).map(([key, [text]]) => html`<option value=${key}>${text}</option>`)}</select>`}>
    <${HeatTable} data=${data} show=${SHOWN[statistic] ?? ((v) => number(v, 3))} pick=${find} /><//>`;
}
