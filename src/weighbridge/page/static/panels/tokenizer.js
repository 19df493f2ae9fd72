// The tokens of the model, and what its chat template makes of conversations.
import { html, useState } from "../vendor/htm-preact.js";
import { algorithmOf, number, plural, visible, whole } from "../text.js";
import { Answer, Chip, Choice, Empty, Facts, Name, Section, SideBySide, useAnswer, Waiting } from "../ui.js";

export function Tokenizer({ model, models }) {
  const { tokenizer } = models[model].facts;
  if (tokenizer?.kind === "none") return html`<${Section} title="Tokenizer"><${Empty}>The model has no tokenizer.<//><//>`;
  return html`<${Answer} name="vocabulary" given=${{ model }}>${({ vocabulary: v, conversations, reason }) => (v === null ? html`<${Section} title="Tokenizer"><p class="quiet">Not shown: ${visible(reason)}.</p><//>` : html`
    <${Section} title="Tokenizer">
      <${Facts} rows=${[["Algorithm", visible(algorithmOf(tokenizer, v.algorithm))], ["Pre-tokenizer", v.pre && html`<${Name} text=${v.pre} />`], ["Tokens", whole(v.size)], ["Special tokens", whole(v.special.length)],
        ...Object.entries(v.added).map(([role, added]) => [`Adds ${role}`, added ? "yes" : "no"])]} />
      ${v.losses.map((text) => html`<p class="quiet">${visible(text)}</p>`)}
    <//>
    ${v.templates.length > 0 ? html`<${Template} model=${model} templates=${v.templates} conversations=${conversations} />` : html`<${Section} title="Chat template"><${Empty}>The model has no chat template.<//><//>`}
    <div class="columns"><${Section} title="Special tokens" note=${plural(v.special.length, "token")}><${Tokens} rows=${v.special} /><//><${Search} model=${model} /></div>`)}<//>`;
}

function Tokens({ rows }) {
  return html`<div class="scroll tall" tabindex="0" role="region" aria-label="Tokens"><table><thead><tr><th class="n">id</th><th>token</th><th>kind</th><th class="n">score</th></tr></thead><tbody>
    ${rows.map((t) => html`<tr><td class="n">${t.id}</td><th scope="row"><${Name} text=${t.text} className="token" /></th><td>${[t.kind.replaceAll("_", " "), ...t.roles].join(", ")}</td><td class="n">${number(t.score)}</td></tr>`)}</tbody></table></div>`;
}

function Search({ model }) {
  const [text, setText] = useState("");
  return html`<${Section} title="Search"><div class="tools"><input type="search" class="find" aria-label="Search tokens" placeholder="A piece of text, or a token’s number" value=${text} onInput=${(e) => setText(e.target.value)} /></div>
    ${text && html`<${Answer} name="tokens" given=${{ model, text }}>${(found) => html`<p class="quiet" role="status">${plural(found.count, "token")}${found.count > found.tokens.length ? `, the first ${found.tokens.length}` : ""}</p>${found.tokens.length > 0 && html`<${Tokens} rows=${found.tokens} />`}`}<//>`}<//>`;
}

/** The template on an example, special tokens as chips. It ran in a process with limits. */
function Template({ model, templates, conversations }) {
  const [template, setTemplate] = useState(templates.includes("default") ? "default" : templates[0]);
  const [conversation, setConversation] = useState(conversations[0]);
  const [prompt, setPrompt] = useState(1);
  return html`<${Section} title="Chat template">
    <div class="tools"><${Choice} label="Conversation" options=${conversations.map((c) => [c, c])} value=${conversation} onChange=${setConversation} />
      <label class="check"><input type="checkbox" checked=${prompt === 1} onChange=${(e) => setPrompt(e.target.checked ? 1 : 0)} /> with the prompt for an answer</label>
      ${templates.length > 1 && html`<select aria-label="Template" value=${template} onChange=${(e) => setTemplate(e.target.value)}>${templates.map((t) => html`<option value=${t}>${visible(t)}</option>`)}</select>`}</div>
    <div class="columns">
      <div><h3>Rendered here</h3><${Answer} name="rendered" given=${{ model, template, conversation, prompt }} what="Rendering">${(data) => html`<${Rendered} data=${data} label="Rendered template" />`}<//></div>
      <div><${Reference} given=${{ model, template, conversation, prompt }} /></div>
    </div><//>`;
}

/** A text with its special tokens, or what ended it. */
function Rendered({ data, label }) {
  return html`<pre class="rendered" dir="ltr" tabindex="0" aria-label=${label}>${data.pieces.map(([text, id]) => (id === null ? text.split("\n").map((line, i) => html`${i > 0 && "\n"}${visible(line)}`) : html`<span class="token" title=${`token ${id}`}>${visible(text)}</span>`))}</pre>
    ${data.stopped && html`<p><${Chip} kind="error">stopped<//> It took too much ${data.stopped}.</p>`}
    ${data.error && html`<div class="problem" role="alert">${visible(data.error)}</div>`}`;
}

/** What transformers makes of it, which takes a second to load. */
function Reference({ given }) {
  const state = useAnswer("reference", given);
  const { rendered, same, lines, reason } = state.data ?? {};
  const differ = (lines ?? []).filter((r) => !r.same).length;
  return html`<h3>By transformers ${rendered && html`<${Chip} kind=${same ? "ok" : "warning"}>${same ? "the same" : differ ? `${plural(differ, "line")} ${differ === 1 ? "differs" : "differ"}` : "differs"}<//>`}</h3>
    ${!state.data ? html`<${Waiting} state=${state} what="Rendering" />` : !rendered ? html`<p class="quiet">Not compared: ${visible(reason)}.</p>`
      : html`<${Rendered} data=${rendered} label="Rendered by transformers" />${differ > 0 && html`<details><summary>Line by line</summary><${SideBySide} rows=${lines} label="Both renderings side by side" heads=${["here", "transformers"]} /></details>`}`}`;
}
