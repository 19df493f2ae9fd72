// The page: reads what it is about, shows one panel at a time.
import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { ask, isExported, readExported, takeToken } from "./api.js";
import { prevailing } from "./layoutmap.js";
import { matching } from "./search.js";
import { tensorList, usePlace } from "./state.js";
import { bytes, visible } from "./text.js";
import { Choice, Name, Waiting } from "./ui.js";
import { Architecture } from "./panels/architecture.js";
import { Diff } from "./panels/diff.js";
import { Layout } from "./panels/layout.js";
import { Microscope } from "./panels/microscope.js";
import { Numbers } from "./panels/numbers.js";
import { Summary } from "./panels/summary.js";
import { Tokenizer } from "./panels/tokenizer.js";
import { Tensors } from "./panels/tensors.js";

const PANELS = [
  ["summary", "Summary", Summary],
  ["tensors", "Tensors", Tensors],
  ["layout", "Layout", Layout],
  ["microscope", "Microscope", Microscope],
  ["numbers", "Numbers", Numbers],
  ["tokenizer", "Tokenizer", Tokenizer],
  ["architecture", "Architecture", Architecture],
  ["diff", "Differences", Diff, true], // of two models
];
const ALIVE = 60_000; // milliseconds between two signs of life

function App() {
  const [place, go] = usePlace();
  const [state, setState] = useState({});
  const [theme, setTheme] = useState("");
  useEffect(() => {
    load().then((data) => setState({ data }), (error) => setState({ error }));
    const timer = setInterval(() => isExported() || ask("start", {}).catch(() => {}), ALIVE);
    return () => clearInterval(timer);
  }, []);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  if (!state.data) return html`<main class="lone"><h1>Weighbridge</h1><${Waiting} state=${state} what="Reading headers" /></main>`;
  const { models, lists } = state.data;
  const model = Math.min(Number(place.model ?? 0) || 0, models.length - 1);
  const [panel, title, Panel] = PANELS.find(([key, , , two]) => key === place.panel && (!two || models.length > 1)) ?? PANELS[0];
  document.title = `${title}: ${visible(models.map((m) => m.name).join(" and "))}`;
  const checked = { ...place, tensor: Number(place.tensor) < lists[model].length ? place.tensor : undefined };
  return html`
    <a class="skip" href="#content" onClick=${(e) => (e.preventDefault(), document.getElementById("content").focus())}>Skip to the panel</a>
    <header><div class="who"><h1>${models.map((m, i) => html`${i > 0 && html`<span class="quiet"> and </span>`}<${Name} text=${m.name} />`)}</h1>
      <span class="quiet">${models.map((m) => `${m.format}, ${bytes(m.files.reduce((s, f) => s + f.size, 0))}`).join(" · ")}</span></div>
      ${models.length > 1 && html`<${Choice} label="Model" options=${models.map((m, i) => [i, "AB"[i]])} value=${model} onChange=${(m) => go({ model: m, tensor: undefined, at: undefined, file: undefined })} />`}
      <${Choice} label="Colours" options=${[["", "Auto"], ["light", "Light"], ["dark", "Dark"]]} value=${theme} onChange=${setTheme} /></header>
    <div class="body">
      <nav aria-label="Panels"><${Tabs} panel=${panel} go=${go} two=${models.length > 1} /></nav>
      <main id="content" tabindex="-1"><h2 class="hidden">${title}</h2><${Panel} key=${`${panel}${model}`} model=${model} models=${models} list=${lists[model]} lists=${lists} place=${checked} go=${go} /></main>
    </div>
    <footer class="quiet">Weighbridge ${state.data.version}${isExported() && ". An exported page: it holds what headers tell, and no values of tensors."}</footer>`;
}

function Tabs({ panel, go, two }) {
  return html`<ul>${PANELS.filter(([, , , pair]) => !pair || two).map(([key, title]) => html`<li><button type="button" aria-current=${key === panel ? "page" : undefined} onClick=${() => go({ panel: key })}>${title}</button></li>`)}</ul>`;
}

async function load() {
  if (!(await readExported())) takeToken();
  const { models, version } = await ask("start");
  const lists = await Promise.all(models.map(async (_, model) => tensorList(await ask("tensors", { model }))));
  return { models, version, lists };
}

window.weighbridge = { prevailing, matching, tensorList }; // for consoles and tests
render(html`<${App} />`, document.getElementById("app"));
