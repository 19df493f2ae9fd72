// The folder of a model: its settings and where a GGUF holds them, generation, card and licence, and what each file is for.
import { html, useState } from "../vendor/htm-preact.js";
import { bytes, plural, visible } from "../text.js";
import { Amount, Answer, Chip, Choice, Empty, Facts, headsOf, Name, Section } from "../ui.js";
import { Compared } from "./pair.js";

export function Folder({ model, models }) {
  const folders = models.map((_, i) => i).filter((i) => models[i].folder);
  if (folders.length > 1 && models[0].adapter === models[1].adapter) return html`<${Answer} name="folder" given=${{ model: 0 }} what="Reading the folders">${(a) => html`<${Answer} name="folder" given=${{ model: 1 }} what="Reading the folders">${(b) => html`<${Two} sides=${[a, b]} models=${models} />`}<//>`}<//>`;
  return html`<${Answer} name="folder" given=${{ model: folders.includes(model) ? model : folders[0] }} what="Reading the folder">${(data) => html`
    <${Settings} rows=${data.settings} losses=${data.losses} />
    <${Generation} rows=${data.generation} />
    <${Card} data=${data} />
    <${Files} files=${data.files} unlisted=${data.unlisted} />`}<//>`;
}

/** Two folders: settings and generation in one table each, card and files beside each other. */
function Two({ sides, models }) {
  const heads = headsOf(models);
  const [every, setEvery] = useState(false);
  const settings = merged(sides.map((side) => side.settings)), generation = merged(sides.map((side) => side.generation));
  const kept = settings.filter(([, a, b]) => every || a !== b);
  return html`
    <${Section} title="Settings of both" note=${`${plural(settings.filter(([, a, b]) => a !== b).length, "difference")}`}>
      <div class="tools"><${Choice} label="Settings" options=${[[false, "That differ"], [true, "All"]]} value=${every} onChange=${setEvery} /></div>
      ${kept.length ? html`<${Compared} rows=${kept} label="Settings of both" heads=${heads} />` : html`<${Empty}>All settings are equal.<//>`}<//>
    ${generation.length > 0 && html`<${Section} title="Generation of both"><${Compared} rows=${generation} label="Generation of both" heads=${heads} /><//>`}
    <div class="columns">${sides.map((side, i) => html`<div class="stacked"><p class="alone">${heads[i]}</p><${Card} data=${side} /><${Files} files=${side.files} unlisted=${side.unlisted} of=${"AB"[i]} /></div>`)}</div>`;
}

/** Rows of [setting with its meaning, A, B] of all settings of both. */
function merged(sides) {
  const [a, b] = sides.map((rows) => new Map(rows.map((row) => [row.key, row])));
  return [...new Set([...a.keys(), ...b.keys()])].map((key) => {
    const meaning = (a.get(key) ?? b.get(key)).meaning;
    return [html`<${Name} text=${key} />${meaning && html`<br/><small>${visible(meaning)}</small>`}`, a.get(key)?.value ?? "", b.get(key)?.value ?? ""];
  });
}

const GROUPS = [["all", "All"], ["gguf", "In a GGUF"], ["default", "Defaults"], ["none", "Without a key"], ["lost", "Lost"]];
/** `bookkeeping: who saved the model ...` -> `not needed (bookkeeping)`. */
const briefly = (note) => note.replace(/^(\w+): .*$/s, "not needed ($1)");
const groupOf = (row) => (row.lost ? "lost" : row.gguf.length ? "gguf" : "none");

function Settings({ rows, losses }) {
  const [group, setGroup] = useState("all");
  if (!rows.length) return html`<${Section} title="Settings"><${Empty}>The folder has no config.json.<//><//>`;
  const isIn = (row, key) => key === "all" || (key === "default" ? !row.stated : groupOf(row) === key);
  const kept = rows.filter((row) => isIn(row, group));
  return html`<${Section} title="Settings" note="config.json, and defaults of its class">
    <div class="tools"><${Choice} label="Settings" options=${GROUPS.map(([key, title]) => [key, `${title} ${rows.filter((row) => isIn(row, key)).length}`]).filter(([key], i) => i === 0 || rows.some((row) => isIn(row, key)))} value=${group} onChange=${setGroup} /></div>
    ${losses.map((text) => html`<p class="problem">${visible(text)}</p>`)}
    <${Table} rows=${kept} label="Settings" /><//>`;
}

/** Settings: key, value, meaning, where a GGUF has it. */
function Table({ rows, label }) {
  const placed = rows.some((row) => row.gguf.length > 0 || row.note || row.lost);
  return html`<div class="scroll settings" tabindex="0" role="region" aria-label=${label}><table><thead><tr><th>setting</th><th>value</th><th>meaning</th>${placed && html`<th>in a GGUF</th>`}</tr></thead><tbody>
    ${rows.map((row) => html`<tr><th scope="row"><${Name} text=${row.key} />${!row.stated && html` <small>default</small>`}</th><td><${Name} text=${row.value} /></td><td>${visible(row.meaning)}</td>
      ${placed && html`<td>${row.lost ? html`<${Chip} kind="warning">lost<//>` : row.gguf.length ? row.gguf.map(([key, value]) => html`<div><${Name} text=${key} />${value !== row.value && html` <span class="quiet">= ${visible(value)}</span>`}</div>`) : html`<span class="quiet" title=${visible(row.note)}>${briefly(visible(row.note))}</span>`}</td>`}</tr>`)}</tbody></table></div>`;
}

function Generation({ rows }) {
  return rows.length > 0 && html`<${Section} title="Generation" note="generation_config.json"><${Table} rows=${rows} label="Generation" /><//>`;
}

function Card({ data }) {
  const { card, card_trouble: trouble, licence } = data;
  if (!card.length && !licence.length && !trouble) return html`<${Section} title="Card and licence"><${Empty}>The folder has neither a model card nor a licence.<//><//>`;
  return html`<${Section} title="Card and licence">
    <${Facts} rows=${[...card.map(([key, text]) => [key.replaceAll("_", " "), html`<${Name} text=${text} />`]), ...licence.map(([name, line]) => [name, visible(line), true])]} />
    ${trouble && html`<p class="problem">${visible(trouble)}</p>`}<//>`;
}

const ORDER = ["weights", "index", "settings", "tokenizer", "inputs", "code", "card", "licence", "checks", "attributes", "pictures", "other weights", "left over", "other"];

/** The files by what they belong to, with the size of each group. */
function Files({ files, unlisted, of = "" }) {
  const groups = ORDER.map((kind) => [kind, files.filter((file) => file.kind === kind)]).filter(([, own]) => own.length);
  const total = files.reduce((n, file) => n + file.nbytes, 0);
  return html`<${Section} title=${plural(files.length + unlisted, "file")} note=${bytes(total)}>
    <div class="scroll" tabindex="0" role="region" aria-label=${of ? `Files of ${of}` : "Files of the folder"}><table class="belongs"><thead><tr><th>belongs to</th><th>file</th><th>what for</th><th class="n">size</th></tr></thead>
    ${groups.map(([kind, own]) => html`<tbody>${own.map((file, i) => html`<tr>${i === 0 && html`<th scope="rowgroup" rowspan=${own.length}>${kind === "left over" || kind === "code" ? html`<${Chip} kind="warning">${kind}<//>` : kind}<br/><small>${bytes(own.reduce((n, f) => n + f.nbytes, 0))}</small></th>`}
      <td><${Name} text=${file.name} /><small class="why">${visible(file.why)}</small></td><td class="quiet">${visible(file.why)}</td><td class="n"><${Amount} text=${bytes(file.nbytes)} /></td></tr>`)}</tbody>`)}</table></div>
    ${unlisted > 0 && html`<p class="quiet">and ${plural(unlisted, "more file")}</p>`}<//>`;
}
