// The page: reads what it is about, shows one panel at a time.
import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { ask, expect, holdsValues, isExported, joinFrame, readExported, stillThere, takeToken } from "./api.js";
import { prevailing } from "./layoutmap.js";
import { matching } from "./search.js";
import { useScrollCue } from "./scrollcue.js";
import { tensorList, usePlace } from "./state.js";
import { bytes, visible } from "./text.js";
import { Choice, Name, useInSight, Waiting } from "./ui.js";
import { useVerdicts, Verdicts } from "./verdict.js";
import { Adapter } from "./panels/adapter.js";
import { Architecture } from "./panels/architecture.js";
import { Diff } from "./panels/diff.js";
import { Folder } from "./panels/folder.js";
import { Graph } from "./panels/graph.js";
import { Layout } from "./panels/layout.js";
import { Microscope } from "./panels/microscope.js";
import { Lineage } from "./panels/lineage.js";
import { Numbers } from "./panels/numbers.js";
import { ArchitectureOfTwo, SummaryOfTwo, TensorsOfTwo, TokensOfTwo } from "./panels/pair.js";
import { Summary } from "./panels/summary.js";
import { Tokenizer } from "./panels/tokenizer.js";
import { Tensors } from "./panels/tensors.js";

const PANELS = [
  { key: "summary", title: "Summary", Panel: Summary, Two: SummaryOfTwo },
  { key: "folder", title: "Folder", Panel: Folder, ofFolder: true, asks: (model) => [["folder", { model }]] },
  { key: "tensors", title: "Tensors", Panel: Tensors, Two: TensorsOfTwo, asks: (model) => [["tree", { model, counted: 0 }]] },
  { key: "layout", title: "Layout", Panel: Layout, needsList: true },
  { key: "microscope", title: "Microscope", Panel: Microscope, needsList: true },
  { key: "numbers", title: "Numbers", Panel: Numbers, needsList: true },
  { key: "tokenizer", title: "Tokenizer", Panel: Tokenizer, Two: TokensOfTwo, ofDescribed: true, asks: (model) => [["vocabulary", { model }]] },
  { key: "architecture", title: "Architecture", Panel: Architecture, Two: ArchitectureOfTwo, asks: (model) => [["architecture", { model }]] },
  { key: "graph", title: "Operators", Panel: Graph, ofDescribed: true, asks: (model) => [["graph", { model }]] },
  { key: "adapter", title: "Adapter", Panel: Adapter, ofAdapter: true },
  { key: "lineage", title: "Lineage", Panel: Lineage, ofTwo: true },
  { key: "diff", title: "Differences", Panel: Diff, ofTwo: true },
];
/** Whether a panel has something to show: a plain file of tensors has no tokenizer, and no place for one. */
const applies = ({ ofTwo, ofDescribed, ofFolder, ofAdapter }, models) =>
  (!ofAdapter || models.some(({ adapter }) => adapter)) && (!ofFolder || models.some(({ folder }) => folder)) && (!ofTwo || models.length > 1) && (!ofDescribed || models.some(({ facts }) => facts.architecture ?? facts.tokenizer));
const CUE = 44; // pixels beside the tab that is shown, where the cue for more tabs is
const ALIVE = 60_000; // milliseconds between two signs of life

function App() {
  const [place, go] = usePlace();
  const [state, setState] = useState({});
  const [lists, setLists] = useState({});
  const [theme, setTheme] = useState("");
  const [ended, setEnded] = useState(false);
  const verdicts = useVerdicts(state.data?.models, state.shown);
  useEffect(() => {
    load(place).then(setState, (error) => setState({ error }));
    const timer = setInterval(stillThere, ALIVE), told = ({ detail }) => setEnded(detail);
    addEventListener("ended", told);
    return () => (clearInterval(timer), removeEventListener("ended", told));
  }, []);
  useEffect(() => {
    if (state.data) state.shown.then(() => listed(state.data.models, (model, list) => setLists((old) => ({ ...old, [model]: list }))));
  }, [state.data]);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  if (!state.data) return html`<main class="lone"><h1>Weighbridge</h1><${Waiting} state=${state} what="Reading headers" /></main>`;
  const { models } = state.data;
  const model = Math.min(Number(place.model ?? 0) || 0, models.length - 1);
  const { key: panel, title, Panel, Two, needsList } = PANELS.find((p) => p.key === place.panel && applies(p, models)) ?? PANELS[0];
  document.title = `${title}: ${visible(models.map((m) => m.name).join(" and "))}`;
  const checked = { ...place, tensor: Number(place.tensor) < models[model].tensors ? place.tensor : undefined };
  const unlisted = needsList ? models.map((_, m) => lists[m] ?? {}).find((list) => list.length === undefined) : undefined;
  return html`
    <a class="skip" href="#content" onClick=${(e) => (e.preventDefault(), document.getElementById("content").focus())}>Skip to the panel</a>
    <header class=${models.length > 1 ? "two" : ""}><div class="who"><h1>${models.map((m, i) => html`${i > 0 && html`<span class="quiet"> and </span>`}<${Name} text=${m.name} />`)}</h1>
      <span class="quiet">${models.map((m) => `${m.format}, ${bytes(m.files.reduce((s, f) => s + f.size, 0))}`).join(" · ")}</span></div>
      ${models.length > 1 && html`<${Choice} label="Model" options=${models.map((m, i) => [i, "AB"[i]])} value=${model} onChange=${(m) => go({ model: m, tensor: undefined, at: undefined, file: undefined })} />`}
      <${Choice} label="Colours" options=${[["", "Auto"], ["light", "Light"], ["dark", "Dark"]]} value=${theme} onChange=${setTheme} /></header>
    ${ended && html`<div class="banner warning" role="alert"><b>The server has ended.</b><div><p>Run <code>wb view</code> again, and open the address that it prints. What was read is still shown.</p></div></div>`}
    <${Verdicts} models=${models} verdicts=${verdicts} go=${go} />
    <div class="body">
      <nav aria-label="Panels"><${Tabs} panel=${panel} go=${go} models=${models} /></nav>
      <main id="content" tabindex="-1"><h2 class="hidden">${title}</h2>${unlisted ? html`<${Waiting} state=${unlisted} what="Reading names" />`
        : html`${Two && models.length > 1 && html`<${Two} models=${models} lists=${lists} /><p class="alone"><b>${"AB"[model]}</b> <${Name} text=${models[model].name} /></p>`}<${Panel} key=${`${panel}${model}`} model=${model} models=${models} list=${lists[model]} lists=${lists} verdict=${verdicts[model]} place=${checked} go=${go} />`}</main>
    </div>
    <footer class="quiet">Weighbridge ${state.data.version}${isExported() && `. An exported page: it holds what headers tell, and ${holdsValues() ? "statistics" : "no values"} of tensors.`}</footer>`;
}

function Tabs({ panel, go, models }) {
  const box = useInSight("[aria-current]", panel, CUE), cue = useScrollCue(box);
  return html`<div class="tabs" data-more=${cue}><ul ref=${box}>${PANELS.filter((p) => applies(p, models)).map(({ key, title }) => html`<li><button type="button" aria-current=${key === panel ? "page" : undefined} onClick=${() => go({ panel: key })}>${title}</button></li>`)}</ul>
    ${["before", "after"].map((side) => html`<button type="button" class=${`cue ${side}`} tabindex="-1" aria-hidden="true" onClick=${() => box.current.scrollBy({ left: (side === "after" ? 0.8 : -0.8) * box.current.clientWidth, behavior: "smooth" })}>${side === "after" ? "›" : "‹"}</button>`)}</div>`;
}

/** {data, shown}: what the page is about, and a promise that is kept when the first panel shows what it asked for. */
async function load(place) {
  if (!(await readExported()) && !joinFrame()) takeToken();
  const panel = PANELS.find((p) => p.key === place.panel) ?? PANELS[0];
  const first = expect(panel.asks?.(Number(place.model ?? 0) || 0) ?? []);
  return { data: await ask("start"), shown: first.then(painted) };
}

const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

/** Reads the list of each model, which is long; gives it, or `{error}`. */
async function listed(models, give) {
  for (const model of models.keys()) {
    try {
      give(model, tensorList(await ask("tensors", { model })));
    } catch (error) {
      give(model, { error });
    }
  }
}

window.weighbridge = { prevailing, matching, tensorList }; // for consoles and tests
render(html`<${App} />`, document.getElementById("app"));
