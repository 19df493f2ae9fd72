// The page: reads what it is about, shows one panel at a time.
import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { ask, expect, holds, holdsValues, isExported, joinFrame, readExported, showSides, stillThere, takeToken } from "./api.js";
import { prevailing } from "./layoutmap.js";
import { matching } from "./search.js";
import { useScrollCue } from "./scrollcue.js";
import { tensorList, usePlace } from "./state.js";
import { bytes, kindOf, sizeOf, visible } from "./text.js";
import { Choice, Name, useInSight, Waiting } from "./ui.js";
import { useVerdicts, Verdicts } from "./verdict.js";
import { Adapter } from "./panels/adapter.js";
import { Architecture } from "./panels/architecture.js";
import { Diff } from "./panels/diff.js";
import { Folder } from "./panels/folder.js";
import { Importance } from "./panels/importance.js";
import { Graph } from "./panels/graph.js";
import { Layout } from "./panels/layout.js";
import { Measured } from "./panels/measured.js";
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
  { key: "layout", title: "Layout", Panel: Layout, ofBoth: true, needsList: true },
  { key: "microscope", title: "Microscope", Panel: Microscope, ofBoth: true, needsList: true, held: ["bytes", "pickle"] },
  { key: "numbers", title: "Numbers", Panel: Numbers, ofBoth: true, needsList: true },
  { key: "tokenizer", title: "Tokenizer", Panel: Tokenizer, Two: TokensOfTwo, ofTokens: true, asks: (model) => [["vocabulary", { model }]] },
  { key: "architecture", title: "Architecture", Panel: Architecture, Two: ArchitectureOfTwo, ofModel: true, asks: (model) => [["architecture", { model }]] },
  { key: "graph", title: "Operators", Panel: Graph, ofDescribed: true, asks: (model) => [["graph", { model }]] },
  { key: "adapter", title: "Adapter", Panel: Adapter, ofAdapter: true, held: ["adapter"] },
  { key: "importance", title: "Importance", Panel: Importance, ofImatrix: true },
  { key: "quality", title: "Quality", Panel: Measured, ofMeasured: true },
  { key: "lineage", title: "Lineage", Panel: Lineage, ofSeveral: true, held: ["lineage"] },
  { key: "diff", title: "Differences", Panel: Diff, ofTwo: true, held: ["diff"] },
];
/** Whether two are compared: both are models, or projectors, or adapters. */
const comparable = ([a, b]) => b !== undefined && kindOf(a) === kindOf(b) && !a.imatrix;
const hasTokens = (model) => (model.facts.tokenizer ? model.facts.tokenizer.kind !== "none" : Boolean(model.facts.chat_template));
/** Whether a drawing of the model says more than its list of tensors, as far as that is read. */
const isLayered = ({ facts }, list) => Boolean(facts.architecture) || list?.length === undefined || list.layer.some((layer) => layer >= 0);
/** What a panel needs, by its mark: a plain file of tensors has no tokenizer, and no place for one. */
const NEEDS = {
  ofFolder: ({ models }) => models.some(({ folder }) => folder), ofModel: ({ models, lists }) => models.some((model, i) => !model.imatrix && !model.adapter && isLayered(model, lists[i])), ofTokens: ({ models }) => models.some(hasTokens),
  ofDescribed: ({ models }) => models.some((model) => kindOf(model) === "model" && (model.facts.architecture ?? model.facts.tokenizer)), ofAdapter: ({ models }) => models.some(({ adapter }) => adapter),
  ofImatrix: ({ models }) => models.some(({ imatrix }) => imatrix), ofMeasured: ({ measured }) => measured > 0, ofTwo: ({ models }) => comparable(models),
  ofSeveral: ({ all }) => all.filter((model) => kindOf(model) === "model").length > 1,
};
/** Whether a panel has something to show, also in an exported page. */
const applies = (panel, page) => Object.entries(NEEDS).every(([mark, met]) => !panel[mark] || met(page)) && (panel.held ?? ["start"]).some(holds);
const NONE = "none"; // B of a place that shows one of several models

/** The numbers of the models that a place shows: A, and B unless that is none. */
function sidesOf({ a, b }, count) {
  const within = (text, otherwise) => (Number(text) < count ? Number(text) : otherwise);
  const first = within(a, 0), second = b === NONE ? first : within(b, first === 0 ? 1 : 0);
  return second === first || second >= count ? [first] : [first, second];
}
const CUE = 44; // pixels beside the tab that is shown, where the cue for more tabs is
const ALIVE = 60_000; // milliseconds between two signs of life

function App() {
  const [place, go] = usePlace();
  const [state, setState] = useState({});
  const [lists, setLists] = useState({});
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "");
  const [ended, setEnded] = useState(false);
  const sides = sidesOf(place, state.data?.models.length ?? 2), named = sides.join();
  showSides(sides);
  const every = useVerdicts(state.data?.models, state.shown, sides), verdicts = sides.map((n) => every[n]);
  useEffect(() => {
    load(place).then(setState, (error) => setState({ error }));
    const timer = setInterval(stillThere, ALIVE), told = ({ detail }) => setEnded(detail);
    addEventListener("ended", told);
    return () => (clearInterval(timer), removeEventListener("ended", told));
  }, []);
  useEffect(() => {
    if (state.data) state.shown.then(() => listed(sides.filter((n) => !lists[n]), (n, list) => setLists((old) => ({ ...old, [n]: list }))));
  }, [state.data, named]);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  if (!state.data) return html`<main class="lone"><h1>Weighbridge</h1><${Waiting} state=${state} what="Reading headers" /></main>`;
  const all = state.data.models, models = sides.map((n) => all[n]), shownLists = sides.map((n) => lists[n]);
  const model = Math.min(Number(place.model ?? 0) || 0, models.length - 1), page = { models, all, lists: shownLists, measured: state.data.measured };
  const { key: panel, title, Panel, Two, ofBoth, needsList } = PANELS.find((p) => p.key === (place.panel ?? (all.length > 2 ? "lineage" : models.every(({ imatrix }) => imatrix) ? "importance" : "summary")) && applies(p, page)) ?? PANELS[0];
  document.title = `${title}: ${visible(models.map((m) => m.name).join(" and "))}`;
  const checked = { ...place, tensor: Number(place.tensor) < models[model].tensors ? place.tensor : undefined };
  const unlisted = needsList ? shownLists.map((list) => list ?? {}).find((list) => list.length === undefined) : undefined;
  return html`
    <a class="skip" href="#content" onClick=${(e) => (e.preventDefault(), document.getElementById("content").focus())}>Skip to the panel</a>
    <header class=${models.length > 1 ? "two" : ""}><div class="who"><h1>${models.map((m, i) => html`${i > 0 && html`<span class="quiet"> and </span>`}<${Name} text=${m.name} />`)}</h1>
      <span class="quiet">${all.length > 2 && `${models.length} of ${all.length} models: `}${models.map((m) => `${m.format}, ${bytes(sizeOf(m))}${m.fetched == null ? "" : `, ${bytes(m.fetched)} fetched to open it`}`).join(" · ")}</span></div>
      ${models.length > 1 && html`<${Choice} label="Model" options=${models.map((m, i) => [i, "AB"[i]])} value=${model} onChange=${(m) => go({ model: m, tensor: undefined, at: undefined, file: undefined })} />`}
      <${Choice} label="Colours" options=${[["", "Auto"], ["light", "Light"], ["dark", "Dark"]]} value=${theme} onChange=${setTheme} />
      ${all.length > 2 && html`<${Sides} all=${all} sides=${sides} go=${go} />`}</header>
    ${ended && html`<div class="banner warning" role="alert"><b>The server has ended.</b><div><p>Run <code>wb view</code> again, and open the address that it prints. What was read is still shown.</p></div></div>`}
    <${Verdicts} models=${models} verdicts=${verdicts} go=${go} />
    <div class="body">
      <nav aria-label="Panels"><${Tabs} panel=${panel} go=${go} shown=${PANELS.filter((p) => applies(p, page))} /></nav>
      <main id="content" tabindex="-1"><h2 class="hidden">${title}</h2>${unlisted ? html`<${Waiting} state=${unlisted} what="Reading names" />`
        : html`${Two && comparable(models) && html`<${Two} key=${`${panel}${named}`} models=${models} lists=${shownLists} />`}${Two && models.length > 1 && html`<p class="alone"><b>${"AB"[model]}</b> <${Name} text=${models[model].name} /></p>`}<${Panel} key=${`${panel}${ofBoth ? "" : model} ${named}`} model=${model} models=${models} all=${all} list=${shownLists[model]} lists=${shownLists} verdicts=${verdicts} verdict=${verdicts[model]} place=${checked} go=${go} />`}</main>
    </div>
    <footer class="quiet">Weighbridge ${state.data.version}${isExported() && `. An exported page with the contents of headers and ${holdsValues() ? "statistics" : "no values"} of tensors; wb view shows each byte.`}</footer>`;
}

/** What the page shows as A and as B, of more than two models. */
function Sides({ all, sides, go }) {
  const away = { model: undefined, tensor: undefined, at: undefined, file: undefined, block: undefined };
  const option = (m, n) => html`<option value=${String(n)}>${visible(m.name)}</option>`;
  return html`<div class="sides">${["a", "b"].map((side, i) => html`<label><b>${side.toUpperCase()}</b> <select aria-label=${`Model ${side.toUpperCase()}`} value=${String(sides[i] ?? NONE)} onChange=${(e) => go({ a: sides[0], b: sides[1] ?? NONE, ...away, [side]: e.target.value })}>
    ${i === 1 && html`<option value=${NONE}>no other</option>`}${all.map(option)}</select></label>`)}</div>`;
}

function Tabs({ panel, go, shown }) {
  const box = useInSight("[aria-current]", panel, CUE), cue = useScrollCue(box);
  return html`<div class="tabs" data-more=${cue}><ul ref=${box}>${shown.map(({ key, title }) => html`<li><button type="button" aria-current=${key === panel ? "page" : undefined} onClick=${() => go({ panel: key })}>${title}</button></li>`)}</ul>
    ${["before", "after"].map((side) => html`<button type="button" class=${`cue ${side}`} tabindex="-1" aria-hidden="true" onClick=${() => box.current.scrollBy({ left: (side === "after" ? 0.8 : -0.8) * box.current.clientWidth, behavior: "smooth" })}>${side === "after" ? "›" : "‹"}</button>`)}</div>`;
}

/** {data, shown}: what the page is about, and a promise that is kept when the first panel shows what it asked for. */
async function load(place) {
  if (!(await readExported()) && !joinFrame()) takeToken();
  showSides(sidesOf(place, Infinity));
  const panel = PANELS.find((p) => p.key === place.panel) ?? PANELS[0];
  const first = expect(panel.asks?.(Number(place.model ?? 0) || 0) ?? []);
  return { data: await ask("start"), shown: first.then(painted) };
}

const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

/** Reads the list of each of these models, which is long; gives it, or `{error}`. */
async function listed(numbers, give) {
  for (const real of numbers) {
    try {
      give(real, tensorList(await ask("tensors", { real })));
    } catch (error) {
      give(real, { error });
    }
  }
}

window.weighbridge = { prevailing, matching, tensorList }; // for consoles and tests
render(html`<${App} />`, document.getElementById("app"));
