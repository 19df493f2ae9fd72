// Bytes beside their meaning: of the file, of a block of weights, of a pickle step by step.
import { html, useEffect, useMemo, useState } from "../vendor/htm-preact.js";
import { holds } from "../api.js";
import { twinOf } from "../state.js";
import { hex, number, percent, plural, shape, visible, whole } from "../text.js";
import { Answer, Chip, Choice, Facts, Name, Section, useAnswer, Waiting } from "../ui.js";
import { Mark } from "../verdict.js";

const PAGE = 512; // bytes in sight
const PICKLES = /torch|pickle|pt\b/;

export function Microscope({ models, model, list, lists, verdicts, place, go }) {
  const pickled = (m) => PICKLES.test(models[m].format), two = models.length > 1;
  const mode = !holds("bytes") ? "pickle" : place.mode ?? (place.tensor !== undefined || (two && list.length && !pickled(model) && place.at === undefined) ? "block" : pickled(model) && place.at === undefined ? "pickle" : "bytes");
  const modes = [...(holds("bytes") ? [["bytes", "Bytes"]] : []), ...(holds("block") && list.length ? [["block", "Block"]] : []), ...(models.some((_, m) => pickled(m)) ? [["pickle", "Pickle, step by step"]] : [])];
  const each = (View) => [...models.keys()].map((m) => html`<${View} key=${m} models=${models} model=${m} list=${lists[m]} verdict=${verdicts[m]} letter=${two ? "AB"[m] : ""} place=${m === model ? place : there(mode, place, lists[model], lists[m], models[model])} go=${(change) => go({ model: m, ...elsewhere(m, change) })} />`);
  const elsewhere = (m, change) => (m === model ? change : { ...there(mode, place, lists[model], lists[m], models[model]), ...change });
  return html`${modes.length > 1 && html`<div class="tools"><${Choice} label="What to look at" options=${modes} value=${mode} onChange=${(m) => go({ mode: m })} /></div>`}
    ${mode === "bytes" && each(Bytes)}
    ${mode === "block" && (two ? html`<${BlocksOfTwo} models=${models} model=${model} lists=${lists} place=${place} go=${go} />` : html`<${Block} model=${model} list=${list} place=${place} go=${go} />`)}
    ${mode === "pickle" && [...models.keys()].filter(pickled).map((m) => html`<${JudgedPickle} key=${m} model=${m} letter=${two ? "AB"[m] : ""} verdict=${verdicts[m]} place=${m === model ? place : {}} go=${(change) => go({ model: m, mode, ...change })} />`)}`;
}

/** The place in another model's file that corresponds to one in this file: the same share of the twin of a tensor, the
 * same byte elsewhere. */
function there(mode, place, list, other, info) {
  const at = Number(place.at ?? 0) || 0, file = Math.min(Number(place.file ?? 0), info.files.length - 1);
  for (let i = 0; i < list.length; i++) {
    const inside = at - Number(list.offset[i]), size = Number(list.nbytes[i]);
    if (list.file[i] !== file || inside < 0 || inside >= size) continue;
    const twin = twinOf(other, list.at(i));
    if (twin < 0) break;
    return { mode, file: other.file[twin], at: Number(other.offset[twin]) + Math.floor((inside / size) * Number(other.nbytes[twin])) };
  }
  return { mode, file: 0, at };
}

/** The block of both models with the same weights, one above the other, and those weights in both. */
function BlocksOfTwo({ models, model, lists, place, go }) {
  const tensor = Math.min(Number(place.tensor ?? 0), lists[model].length - 1), twin = twinOf(lists[1 - model], lists[model].at(tensor));
  const here = useAnswer("block", { model, tensor, number: Math.max(0, Number(place.block ?? 0) || 0) });
  const sizes = useAnswer("block", { model: 1 - model, tensor: twin, number: 0 }, twin >= 0);
  const [row, column] = here.data ? splitIndex(here.data) : [0, 0];
  const opposite = here.data && sizes.data ? Math.floor((here.data.element / Math.max(1, elements(sizes.data))) * sizes.data.blocks) : 0;
  const sections = [html`<${Block} key=${model} model=${model} letter=${"AB"[model]} list=${lists[model]} place=${place} go=${go} />`,
    twin < 0 ? html`<${Section} key=${1 - model} title=${html`<b>${"AB"[1 - model]}</b>`}><p class="quiet">It has no tensor of this name, or of this role and layer.</p><//>`
      : sizes.data ? html`<${Block} key=${1 - model} model=${1 - model} letter=${"AB"[1 - model]} list=${lists[1 - model]} place=${{ tensor: twin, block: Math.min(opposite, sizes.data.blocks - 1) }} go=${(change) => go({ model: 1 - model, mode: "block", tensor: twin, ...change })} />`
        : html`<${Section} key=${1 - model} title=${html`<b>${"AB"[1 - model]}</b>`}><${Waiting} state=${sizes} /><//>`];
  return html`${twin >= 0 && here.data && html`<${Weights} models=${models} model=${model} tensor=${tensor} row=${row} column=${column} />`}${model === 0 ? sections : sections.reverse()}`;
}

const elements = ({ shape: dims }) => dims.reduce((n, d) => n * d, 1);

/** The row and the column of a block's first element; all axes but the last count as rows. */
function splitIndex({ element, shape: dims }) {
  const width = dims.length > 1 ? dims.at(-1) : Infinity;
  return width === Infinity ? [0, element] : [Math.floor(element / width), element % width];
}

/** The same weights in both models: each of A, of B, and the difference. */
function Weights({ models, model, tensor, row, column }) {
  const state = useAnswer("weights", { from: model, tensor, row, column });
  const [picked, setPicked] = useState(0);
  if (!state.data) return html`<${Section} title="The same weights in both"><${Waiting} state=${state} /><//>`;
  const both = model === 0 ? [state.data.a, state.data.b] : [state.data.b, state.data.a], at = Math.min(picked, both[0].length - 1);
  const errors = both[0].map((v, i) => (typeof v === "number" && typeof both[1][i] === "number" ? both[1][i] - v : null)), known = errors.filter((e) => e !== null);
  const power = both[0].reduce((sum, v) => sum + (v ?? 0) ** 2, 0), lost = known.reduce((sum, e) => sum + e * e, 0);
  const moved = state.data.moved.flatMap((is, i) => (is ? ["AB"[model === 0 ? i : 1 - i]] : []));
  return html`<${Section} title="The same weights in both" note=${html`<${Name} text=${state.data.name} />`}>
    <p>Row ${whole(state.data.row)}, from column ${whole(state.data.column)}: ${plural(both[0].length, "weight")}. ${known.length > 0 && html`Largest difference <b>${number(Math.max(...known.map(Math.abs)))}</b>${power > 0 && html`, relative error <b>${percent(Math.sqrt(lost / power))}</b>`}.`}
      ${moved.length > 0 && html` <span class="quiet">The file of ${moved.join(" and ")} has the rows in another order; here they are in the order of the family, so the block below may be of another row.</span>`}</p>
    <${PairedValues} both=${both} errors=${errors} at=${at} pick=${setPicked} />
    <p class="worked"><span class="quiet">weight ${at}:</span> A = <b>${number(both[0][at], 6)}</b><span class="quiet">, </span>B = <b>${number(both[1][at], 6)}</b><span class="quiet">, </span>B − A = <b>${number(errors[at], 3)}</b></p><//>`;
}

/** A number that is typed, with buttons for the one before and after. */
function Stepper({ label, value, last, step = 1, onChange, format = whole }) {
  const set = (n) => Number.isFinite(n) && onChange(Math.min(Math.max(0, Math.floor(n)), last));
  return html`<span class="stepper"><button type="button" class="small" disabled=${value <= 0} aria-label=${`Previous ${label}`} onClick=${() => set(value - step)}>◂</button>
    <span class="quiet" aria-hidden="true">${label}</span><input aria-label=${label} value=${String(value)} inputmode="numeric" onChange=${(e) => set(Number(e.target.value.replaceAll(/[,_ ]/g, "")))} />
    <button type="button" class="small" disabled=${value >= last} aria-label=${`Next ${label}`} onClick=${() => set(value + step)}>▸</button><span class="quiet">of ${format(last + (step === 1 ? 1 : 0))}</span></span>`;
}

function Bytes({ models, model, list, letter, place, go }) {
  const info = models[model], file = Math.min(Number(place.file ?? 0), info.files.length - 1), size = info.files[file].size;
  const at = Math.min(Math.max(0, Number(place.at ?? 0) || 0), Math.max(size - 1, 0));
  const offset = at - (at % PAGE);
  const openBlock = (region) => go({ tensor: Math.max(0, list.names.indexOf(region.label)), block: Math.floor((at - region.start) / region.atom), mode: "block" });
  return html`<${Section} title=${html`<span>${letter && html`<b class="letter">${letter}</b> `}<${Name} text=${info.files[file].name} /></span>`} note=${html`<${Stepper} label="byte" value=${at} last=${Math.max(size - 1, 0)} step=${PAGE} onChange=${(n) => go({ at: n })} />`}>
    <${Answer} name="bytes" given=${{ model, file, offset, length: PAGE }}>${(data) => html`<${Dump} data=${data} letter=${letter} at=${at} pick=${(n) => go({ at: n })} open=${openBlock} />`}<//><//>`;
}

/** Sixteen bytes a row; those of one region have one tint, the picked region stands out. */
function Dump({ data, letter, at, pick, open }) {
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
    <div class="dump scroll" tabindex="0" role="region" aria-label=${`Bytes${of(letter)} in hexadecimal. Arrows move from byte to byte.`} onKeyDown=${press}>
      ${rows.map((r) => html`<div class="line" key=${r}><span class="quiet">${(data.offset + r).toString(16).padStart(8, "0")}</span>
        <span class="hex">${bytes.slice(r, r + 16).map((h, i) => html`<i class=${cell(r + i)} onClick=${() => pick(data.offset + r + i)}>${h}</i>`)}</span>
        <span class="ascii">${bytes.slice(r, r + 16).map((h, i) => html`<i class=${cell(r + i)} onClick=${() => pick(data.offset + r + i)}>${text(h)}</i>`)}</span></div>`)}
    </div>
    <div class="meaning">${current >= 0 && html`<${Meaning} mark=${data.regions[current]} at=${at} open=${open} />`}
      <h3>Regions in sight</h3>
      <div class="scroll marks" tabindex="0" role="region" aria-label=${`Regions in sight${of(letter)}`}><table><thead><tr><th>byte</th><th>what</th><th>value</th></tr></thead><tbody>
      ${data.regions.slice(0, 200).map((m, i) => html`<tr class=${i === current ? "picked" : ""}><td class="n"><button type="button" class="plain" onClick=${() => pick(Math.max(m.start, data.offset))}>${whole(m.start)}</button></td><th scope="row">${!m.label.startsWith(m.kind) && html`<span class=${m.label ? "quiet" : ""}>${m.kind}</span> `}<${Name} text=${m.label} /></th><td><${Name} text=${short(m.value)} /></td></tr>`)}
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

/** ` of A` in the name of what two models have. */
const of = (letter) => (letter ? ` of ${letter}` : "");

const short = (text) => (text.length > 60 ? text.slice(0, 60) + " …" : text);

function Meaning({ mark, at, open }) {
  return html`<${Facts} rows=${[["Byte", `${whole(at)} (${hex(at)})`], ["Is", mark.kind], ["Of", mark.label && mark.label !== mark.kind ? html`<${Name} text=${mark.label} />` : null],
    ["Value", mark.value && html`<${Name} text=${mark.value} />`], ["Region", `${whole(mark.start)} – ${whole(mark.end)}, ${plural(mark.end - mark.start, "byte")}`]]} />
    ${mark.atom > 0 && html`<p class="ways"><button type="button" class="small" onClick=${() => open(mark)}>Open the block of this byte</button></p>`}`;
}

function Block({ model, list, letter = "", place, go }) {
  const tensor = Number(place.tensor ?? 0), block = Math.max(0, Number(place.block ?? 0) || 0);
  const t = list.at(tensor);
  return html`<${Section} title=${html`<span>${letter && html`<b class="letter">${letter}</b> `}<${Name} text=${t.name} /></span>`} note=${html`<${Stepper} label="tensor" value=${tensor} last=${list.length - 1} onChange=${(n) => go({ tensor: n, block: 0 })} />`}>
    <${Answer} name="block" given=${{ model, tensor, number: block }}>${(data) => html`<${BlockView} data=${data} letter=${letter} tensor=${tensor} go=${go} />`}<//><//>`;
}

function BlockView({ data, letter, tensor, go }) {
  const [picked, setPicked] = useState(0);
  const at = Math.min(picked, Math.max(data.values.length - 1, 0));
  useEffect(() => setPicked(0), [data.tensor]);
  const own = new Map(data.bits[at] ?? []);
  return html`<div class="tools"><${Stepper} label="block" value=${data.number} last=${data.blocks - 1} onChange=${(n) => go({ tensor, block: n })} />
      <span class="quiet">${data.dtype}, ${shape(data.shape)}: elements from [${data.index.join(", ")}], ${plural(data.nbytes, "byte")}${data.offset >= 0 ? ` at ${whole(data.offset)} (${hex(data.offset)})` : ""}</span></div>
    <h3>Fields</h3>
    <div class="scroll" tabindex="0" role="region" aria-label=${`Fields${of(letter)}`}><table class="fields"><thead><tr><th>field</th><th>type</th><th>bytes</th><th>value</th></tr></thead><tbody>
      ${data.fields.map((f, i) => html`<tr><th scope="row"><i class="dot" style=${{ background: `var(--c${i % 8 + 1})` }}></i><${Name} text=${f.stored ? `${f.name} (${f.stored})` : f.name} /></th><td class="kind">${f.scalar}${f.count > 1 ? ` × ${f.count}` : ""}</td>
        <td class="mono raw"><${RawBytes} field=${f} own=${own} /></td><td class="mono">${f.values.length <= 16 ? fieldValues(f) : html`<details><summary>${plural(f.values.length, "value")}</summary>${fieldValues(f)}</details>`}</td></tr>`)}
    </tbody></table></div>
    ${data.formula && html`<h3>Formula</h3><p class="formula"><code dir="ltr">value = ${data.formula}</code></p><${Worked} data=${data} at=${at} />`}
    <h3>Values <small>${plural(data.values.length, "element")}${data.values.length > 1 ? "; pick one" : ""}</small></h3>
    <${Values} values=${data.values} letter=${letter} at=${at} pick=${setPicked} />`;
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

/** Keys that move in a grid, by as many columns as it has now. */
const moved = (e, at, length, pick) => {
  const columns = getComputedStyle(e.currentTarget).gridTemplateColumns.split(" ").length;
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[e.key];
  if (by) e.preventDefault(), pick(Math.min(Math.max(0, at + by), length - 1));
};
const largest = (values) => values.reduce((most, v) => (typeof v === "number" ? Math.max(most, Math.abs(v)) : most), 1e-30);
const tint = (v, most) => (typeof v === "number" ? { "--share": Math.min(1, Math.abs(v) / most).toFixed(3), "--hue": v < 0 ? "var(--c2)" : "var(--c1)" } : {});

/** A grid of numbers, tinted by their size; one is picked. */
function Values({ values, letter, at, pick }) {
  const most = largest(values);
  return html`<div class="values" role="group" tabindex="0" aria-label=${`Values of the block${of(letter)}. Arrows pick an element.`} onKeyDown=${(e) => moved(e, at, values.length, pick)}>${values.map((v, i) => html`<i class=${i === at ? "v at" : "v"} style=${tint(v, most)} onClick=${() => pick(i)} title=${`element ${i}`}>${number(v, 3)}</i>`)}</div>`;
}

/** A grid of weights, that of A over that of B, tinted by their difference. */
function PairedValues({ both: [a, b], errors, at, pick }) {
  const most = largest(errors);
  return html`<div class="values paired-values" role="group" tabindex="0" aria-label="Weights of A above those of B. Arrows pick one." onKeyDown=${(e) => moved(e, at, a.length, pick)}>${a.map((v, i) => html`<i class=${i === at ? "v at" : "v"} style=${tint(errors[i], most)} onClick=${() => pick(i)} title=${`weight ${i}: ${number(errors[i], 3)}`}>${number(v, 3)}<br/>${number(b[i], 3)}</i>`)}</div>`;
}

const STEPS = 200;

/** The stepper opens at the step that the place names, or at the one that was judged worst. */
function JudgedPickle({ model, letter, verdict, place, go }) {
  if (!verdict) return html`<${Waiting} state=${{}} what="Checking" />`;
  const file = Number(place.file ?? 0);
  const judged = (verdict.data?.findings ?? []).filter((f) => f.step && f.step.file === file);
  const first = place.step === undefined && place.member === undefined ? judged[0]?.step : undefined;
  return html`<${Pickle} key=${file} model=${model} file=${file} letter=${letter} judged=${judged} member=${place.member ?? first?.member ?? ""} step=${Math.max(0, Number(place.step ?? first?.number ?? 0) || 0)} go=${go} />`;
}

function Pickle({ model, file, letter, judged, member, step, go }) {
  const start = step - (step % STEPS);
  const to = (change) => go({ file, member: member || undefined, ...change });
  return html`<${Answer} name="pickle" given=${{ model, file, member, start }}>${(data) => html`<${Steps} data=${data} letter=${letter} judged=${new Map(judged.filter((f) => f.step.member === data.member).reverse().map((f) => [f.step.number, f]))} start=${start} step=${step} setStep=${(n) => to({ step: n })} setMember=${(m) => to({ member: m, step: 0 })} />`}<//>`;
}

function Steps({ data, letter, judged, start, step, setStep, setMember }) {
  const line = data.steps[step - start], last = start + data.steps.length - (data.more ? 0 : 1);
  const to = (n) => setStep(Math.min(Math.max(0, n), last));
  const press = (e) => {
    const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 20, PageUp: -20 }[e.key];
    if (by) e.preventDefault(), to(step + by);
  };
  useEffect(() => document.querySelector(".steps .picked")?.scrollIntoView({ block: "nearest" }), [step]);
  return html`<${Section} title=${`${letter && `${letter}: `}What the pickle would make Python do`} note=${html`<${Stepper} label="step" value=${step} last=${last} onChange=${to} format=${(n) => (data.more ? `more than ${whole(n)}` : whole(n))} />`}>
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
