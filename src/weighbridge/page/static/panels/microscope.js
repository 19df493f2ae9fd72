// Bytes beside their meaning: of the file, of a block of weights, of a pickle step by step.
import { html, useEffect, useMemo, useState } from "../vendor/htm-preact.js";
import { hex, number, plural, shape, visible, whole } from "../text.js";
import { Answer, Chip, Choice, Facts, Name, Section, Waiting } from "../ui.js";
import { Mark } from "../verdict.js";

const PAGE = 512; // bytes in sight
const PICKLES = /torch|pickle|pt\b/;

export function Microscope({ models, model, list, verdict, place, go }) {
  const pickled = PICKLES.test(models[model].format);
  const mode = place.mode ?? (place.tensor !== undefined ? "block" : pickled && place.at === undefined ? "pickle" : "bytes");
  const modes = [["bytes", "Bytes of the file"], ...(list.length ? [["block", "Block of a tensor"]] : []), ...(pickled ? [["pickle", "Steps of the pickle"]] : [])];
  return html`<div class="tools"><${Choice} label="What to look at" options=${modes} value=${mode} onChange=${(m) => go({ mode: m })} /></div>
    ${mode === "bytes" && html`<${Bytes} models=${models} model=${model} list=${list} place=${place} go=${go} />`}
    ${mode === "block" && html`<${Block} model=${model} list=${list} place=${place} go=${go} />`}
    ${mode === "pickle" && html`<${JudgedPickle} model=${model} verdict=${verdict} place=${place} go=${go} />`}`;
}

/** A number that is typed, with buttons for the one before and after. */
function Stepper({ label, value, last, step = 1, onChange, format = whole }) {
  const set = (n) => Number.isFinite(n) && onChange(Math.min(Math.max(0, Math.floor(n)), last));
  return html`<span class="stepper"><button type="button" class="small" disabled=${value <= 0} aria-label=${`Previous ${label}`} onClick=${() => set(value - step)}>◂</button>
    <span class="quiet" aria-hidden="true">${label}</span><input aria-label=${label} value=${String(value)} inputmode="numeric" onChange=${(e) => set(Number(e.target.value.replaceAll(/[,_ ]/g, "")))} />
    <button type="button" class="small" disabled=${value >= last} aria-label=${`Next ${label}`} onClick=${() => set(value + step)}>▸</button><span class="quiet">of ${format(last + (step === 1 ? 1 : 0))}</span></span>`;
}

function Bytes({ models, model, list, place, go }) {
  const info = models[model], file = Math.min(Number(place.file ?? 0), info.files.length - 1), size = info.files[file].size;
  const at = Math.min(Math.max(0, Number(place.at ?? 0) || 0), Math.max(size - 1, 0));
  const offset = at - (at % PAGE);
  const openBlock = (region) => go({ tensor: Math.max(0, list.names.indexOf(region.label)), block: Math.floor((at - region.start) / region.atom), mode: "block" });
  return html`<${Section} title=${html`<${Name} text=${info.files[file].name} />`} note=${html`<${Stepper} label="byte" value=${at} last=${Math.max(size - 1, 0)} step=${PAGE} onChange=${(n) => go({ at: n })} />`}>
    <${Answer} name="bytes" given=${{ model, file, offset, length: PAGE }}>${(data) => html`<${Dump} data=${data} at=${at} pick=${(n) => go({ at: n })} open=${openBlock} />`}<//><//>`;
}

/** Sixteen bytes a row; those of one region have one tint, the picked region stands out. */
function Dump({ data, at, pick, open }) {
  const bytes = useMemo(() => data.data.match(/../g) ?? [], [data]);
  const [regionOf, groupOf] = useMemo(() => grouped(data, bytes.length), [data]);
  const current = regionOf[at - data.offset] ?? -1, group = groupOf[at - data.offset];
  const rows = Array.from({ length: Math.ceil(bytes.length / 16) }, (_, r) => r * 16);
  const cell = (i) => `b${groupOf[i] % 2 ? " odd" : ""}${groupOf[i] === group ? " in" : ""}${i === at - data.offset ? " at" : ""}`;
  const text = (h) => {
    const code = parseInt(h, 16);
    return code >= 32 && code < 127 ? String.fromCharCode(code) : "·";
  };
  const press = (e) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 16, ArrowUp: -16, PageDown: PAGE, PageUp: -PAGE }[e.key];
    if (by) e.preventDefault(), pick(Math.min(Math.max(0, at + by), data.size - 1));
  };
  return html`<div class="microscope">
    <div class="dump scroll" tabindex="0" role="region" aria-label="Bytes in hexadecimal. Arrows move from byte to byte." onKeyDown=${press}>
      ${rows.map((r) => html`<div class="line" key=${r}><span class="quiet">${(data.offset + r).toString(16).padStart(8, "0")}</span>
        <span class="hex">${bytes.slice(r, r + 16).map((h, i) => html`<i class=${cell(r + i)} onClick=${() => pick(data.offset + r + i)}>${h}</i>`)}</span>
        <span class="ascii">${bytes.slice(r, r + 16).map((h, i) => html`<i class=${cell(r + i)} onClick=${() => pick(data.offset + r + i)}>${text(h)}</i>`)}</span></div>`)}
    </div>
    <div class="meaning">${current >= 0 && html`<${Meaning} mark=${data.regions[current]} at=${at} open=${open} />`}
      <h3>Regions in sight</h3>
      <div class="scroll marks" tabindex="0" role="region" aria-label="Regions in sight"><table><thead><tr><th>bytes</th><th>what</th><th>value</th></tr></thead><tbody>
      ${data.regions.slice(0, 200).map((m, i) => html`<tr class=${i === current ? "picked" : ""}><td class="n"><button type="button" class="plain" onClick=${() => pick(Math.max(m.start, data.offset))}>${whole(m.start)}</button></td><th scope="row">${!m.label.startsWith(m.kind) && `${m.kind} `}<${Name} text=${m.label} /></th><td><${Name} text=${short(m.value)} /></td></tr>`)}
      </tbody></table></div></div></div>`;
}

/** The region of each byte, and a number that changes where a region or an atom of a tensor begins. */
function grouped(data, length) {
  const regionOf = new Int32Array(length).fill(-1), groupOf = new Int32Array(length);
  data.regions.forEach((m, i) => regionOf.fill(i, Math.max(0, m.start - data.offset), Math.max(0, Math.min(length, m.end - data.offset))));
  const atom = (i) => {
    const region = data.regions[regionOf[i]];
    return region?.atom > 1 ? Math.floor((data.offset + i - region.start) / region.atom) : 0;
  };
  for (let i = 1; i < length; i++) groupOf[i] = groupOf[i - 1] + (regionOf[i] !== regionOf[i - 1] || atom(i) !== atom(i - 1) ? 1 : 0);
  return [regionOf, groupOf];
}

const short = (text) => (text.length > 60 ? text.slice(0, 60) + " …" : text);

function Meaning({ mark, at, open }) {
  return html`<${Facts} rows=${[["Byte", `${whole(at)} (${hex(at)})`], ["Is", mark.kind], ["Of", mark.label && mark.label !== mark.kind ? html`<${Name} text=${mark.label} />` : null],
    ["Value", mark.value && html`<${Name} text=${mark.value} />`], ["Region", `${whole(mark.start)} – ${whole(mark.end)}, ${plural(mark.end - mark.start, "byte")}`]]} />
    ${mark.atom > 0 && html`<p class="ways"><button type="button" class="small" onClick=${() => open(mark)}>Open the block of this byte</button></p>`}`;
}

function Block({ model, list, place, go }) {
  const tensor = Number(place.tensor ?? 0), block = Math.max(0, Number(place.block ?? 0) || 0);
  const t = list.at(tensor);
  return html`<${Section} title=${html`<${Name} text=${t.name} />`} note=${html`<${Stepper} label="tensor" value=${tensor} last=${list.length - 1} onChange=${(n) => go({ tensor: n, block: 0 })} />`}>
    <${Answer} name="block" given=${{ model, tensor, number: block }}>${(data) => html`<${BlockView} data=${data} tensor=${tensor} go=${go} />`}<//><//>`;
}

function BlockView({ data, tensor, go }) {
  const [picked, setPicked] = useState(0);
  const at = Math.min(picked, Math.max(data.values.length - 1, 0));
  useEffect(() => setPicked(0), [data.tensor]);
  const own = new Map(data.bits[at] ?? []);
  return html`<div class="tools"><${Stepper} label="block" value=${data.number} last=${data.blocks - 1} onChange=${(n) => go({ tensor, block: n })} />
      <span class="quiet">${data.dtype}, ${shape(data.shape)}: elements from [${data.index.join(", ")}], ${plural(data.nbytes, "byte")}${data.offset >= 0 ? ` at ${whole(data.offset)} (${hex(data.offset)})` : ""}</span></div>
    <h3>Fields</h3>
    <div class="scroll" tabindex="0" role="region" aria-label="Fields"><table class="fields"><thead><tr><th>field</th><th>type</th><th>bytes</th><th>value</th></tr></thead><tbody>
      ${data.fields.map((f, i) => html`<tr><th scope="row"><i class="dot" style=${{ background: `var(--c${i % 8 + 1})` }}></i><${Name} text=${f.stored ? `${f.name} (${f.stored})` : f.name} /></th><td class="kind">${f.scalar}${f.count > 1 ? ` × ${f.count}` : ""}</td>
        <td class="mono raw"><${RawBytes} field=${f} own=${own} /></td><td class="mono">${f.values.length <= 16 ? fieldValues(f) : html`<details><summary>${plural(f.values.length, "value")}</summary>${fieldValues(f)}</details>`}</td></tr>`)}
    </tbody></table></div>
    ${data.formula && html`<h3>Formula</h3><p class="formula"><code dir="ltr">value = ${data.formula}</code></p><${Worked} data=${data} at=${at} />`}
    <h3>Values <small>${plural(data.values.length, "element")}${data.values.length > 1 ? "; pick one" : ""}</small></h3>
    <${Values} values=${data.values} at=${at} pick=${setPicked} />`;
}

/** The bytes of a field; those that have bits of the picked element's code stand out. */
function RawBytes({ field, own }) {
  return (field.raw.match(/../g) ?? []).map((h, i) => html`${i > 0 && " "}${own.has(field.start + i) ? html`<b class="own">${h}</b>` : h}`);
}

/** Where a code lies: its bytes, with the bits of each. */
function bitsInWords(bits) {
  return bits.map(([byte, mask]) => (mask === 255 ? `byte ${byte}` : mask === 15 ? `the low nibble of byte ${byte}` : mask === 240 ? `the high nibble of byte ${byte}` : `${masked(mask)} of byte ${byte}`)).join(", ");
}

function masked(mask) {
  const set = [...Array(8).keys()].filter((bit) => mask & (1 << bit));
  return set.length === 1 ? `bit ${set[0]}` : set.at(-1) - set[0] === set.length - 1 ? `bits ${set[0]}–${set.at(-1)}` : `bits ${set.join(", ")}`;
}

/** The values of a field: patterns of bits and words of packed codes in hexadecimal, as those are no numbers. */
function fieldValues({ name, scalar, raw, count, values }) {
  const size = raw.length / 2 / Math.max(count, 1), words = name === "bits" || scalar === "u32";
  return values.map((v) => (words && Number.isInteger(v) ? hex(v, size * 2) : number(v))).join("  ");
}

/** The numbers of the formula for one element. */
function Worked({ data, at }) {
  const parts = data.parts.filter((p) => p.each > 0 && p.values.length);
  return html`<p class="worked"><span class="quiet">element ${at}:</span> ${parts.map((p) => html`<${Name} text=${p.name} /> = <b>${number(p.values[Math.floor(at / p.each)])}</b><span class="quiet">, </span>`)} value = <b>${number(data.values[at], 6)}</b>${data.bits[at]?.length > 0 && html`<span class="quiet">; its code is ${bitsInWords(data.bits[at])}</span>`}</p>`;
}

function Values({ values, at, pick }) {
  const most = Math.max(...values.map((v) => Math.abs(typeof v === "number" ? v : 0)), 1e-30);
  const tint = (v) => (typeof v === "number" ? { "--share": Math.min(1, Math.abs(v) / most).toFixed(3), "--hue": v < 0 ? "var(--c2)" : "var(--c1)" } : {});
  const press = (e) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 16, ArrowUp: -16 }[e.key];
    if (by) e.preventDefault(), pick(Math.min(Math.max(0, at + by), values.length - 1));
  };
  return html`<div class="values" role="group" tabindex="0" aria-label="Values of the block. Arrows pick an element." onKeyDown=${press}>${values.map((v, i) => html`<i class=${i === at ? "v at" : "v"} style=${tint(v)} onClick=${() => pick(i)} title=${`element ${i}`}>${number(v, 3)}</i>`)}</div>`;
}

const STEPS = 200;

/** The stepper opens at the step that the place names, or at the one that was judged worst. */
function JudgedPickle({ model, verdict, place, go }) {
  if (!verdict) return html`<${Waiting} state=${{}} what="Checking" />`;
  const file = Number(place.file ?? 0);
  const judged = (verdict.data?.findings ?? []).filter((f) => f.step && f.step.file === file);
  const first = place.step === undefined && place.member === undefined ? judged[0]?.step : undefined;
  return html`<${Pickle} key=${file} model=${model} file=${file} judged=${judged} member=${place.member ?? first?.member ?? ""} step=${Math.max(0, Number(place.step ?? first?.number ?? 0) || 0)} go=${go} />`;
}

function Pickle({ model, file, judged, member, step, go }) {
  const start = step - (step % STEPS);
  const to = (change) => go({ file, member: member || undefined, ...change });
  return html`<${Answer} name="pickle" given=${{ model, file, member, start }}>${(data) => html`<${Steps} data=${data} judged=${new Map(judged.filter((f) => f.step.member === data.member).reverse().map((f) => [f.step.number, f]))} start=${start} step=${step} setStep=${(n) => to({ step: n })} setMember=${(m) => to({ member: m, step: 0 })} />`}<//>`;
}

function Steps({ data, judged, start, step, setStep, setMember }) {
  const line = data.steps[step - start], last = start + data.steps.length - (data.more ? 0 : 1);
  const to = (n) => setStep(Math.min(Math.max(0, n), last));
  const press = (e) => {
    const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 20, PageUp: -20 }[e.key];
    if (by) e.preventDefault(), to(step + by);
  };
  useEffect(() => document.querySelector(".steps .picked")?.scrollIntoView({ block: "nearest" }), [step]);
  return html`<${Section} title="What the pickle would make Python do" note=${html`<${Stepper} label="step" value=${step} last=${last} onChange=${to} format=${(n) => (data.more ? `more than ${whole(n)}` : whole(n))} />`}>
    ${data.members.length > 1 && html`<div class="tools"><select aria-label="Pickle" value=${data.member} onChange=${(e) => setMember(e.target.value)}>${data.members.map((m) => html`<option value=${m}>${visible(m)}</option>`)}</select></div>`}
    <p class="quiet">Nothing of it is done: the steps are followed over stand-ins.</p>
    <div class="microscope halves"><div class="scroll tall steps" tabindex="0" role="region" aria-label="Steps. Arrows go forward and back." onKeyDown=${press}><table><thead><tr><th class="n">byte</th><th>opcode</th><th>in words</th></tr></thead><tbody>
      ${data.steps.map((l, i) => html`<tr class=${`${start + i === step ? "picked" : ""} ${judged.has(start + i) ? `judged ${judged.get(start + i).level}` : ""}`} onClick=${() => setStep(start + i)}><td class="n">${whole(l.at)}</td><th scope="row" class="mono">${judged.has(start + i) && html`<${Mark} level=${judged.get(start + i).level} />`}${l.op}</th><td><${Name} text=${l.words} /></td></tr>`)}
    </tbody></table></div>
    <div class="meaning">${line && html`<h3>Step ${step}: <span class="mono">${line.op}</span></h3>${judged.has(step) && html`<p><${Chip} kind=${judged.get(step).level}>${judged.get(step).word.replaceAll("-", " ")}<//> ${visible(judged.get(step).message)}</p>`}<p><${Name} text=${line.words} /></p>
      <p class="quiet">${plural(line.end - line.at, "byte")}: <span class="mono">${(line.raw.match(/../g) ?? []).join(" ")}</span></p>
      <${Pile} line=${line} />
      <${Memo} line=${line} memo=${memoAfter(data, step - start)} />`}</div></div><//>`;
}

/** The memo after a step of this window, by key: what it held before the first, and what each step changed. */
function memoAfter({ memo, steps }, index) {
  const places = new Map(memo.map(({ key, words }) => [key, words]));
  for (const { changed } of steps.slice(0, index + 1)) for (const { key, words } of changed) places.set(key, words);
  return places;
}

function Memo({ line, memo }) {
  const filled = new Set(line.changed.map((place) => place.key)), before = line.memo - memo.size;
  return html`<h3>Memo after it <small>${plural(line.memo, "place")}</small></h3>${line.memo === 0 ? html`<p class="quiet">empty</p>` : html`
    <div class="scroll short memo" tabindex="0" role="region" aria-label="Memo"><table><tbody>
    ${[...memo].reverse().map(([key, words]) => html`<tr class=${filled.has(key) ? "picked" : ""}><th scope="row" class="n">${key}</th><td><${Name} text=${short(words)} />${filled.has(key) && html`<span class="hidden">, by this step</span>`}</td></tr>`)}
    </tbody></table>${before > 0 && html`<p class="quiet">and ${plural(before, "place")} filled before</p>`}</div>`}`;
}

function Pile({ line }) {
  const below = line.depth - line.stack.length;
  return html`<h3>Stack after it <small>${plural(line.depth, "value")}</small></h3>${line.depth ? html`<ol class="pile">
    ${[...line.stack].reverse().map((v) => html`<li>${v.mark ? html`<span class="quiet">— mark —</span>` : html`<${Name} text=${short(v.words)} />`}</li>`)}
    ${below > 0 && html`<li class="quiet">and ${whole(below)} below</li>`}</ol>` : html`<p class="quiet">empty</p>`}`;
}
