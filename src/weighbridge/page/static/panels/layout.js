// The files as maps: every byte coloured by the part, the layer or the type that it is of, from the whole file down to
// single bytes. The shards of a folder and the files of two models are one above the other; and what moved.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { holds, holdsValues, isExported } from "../api.js";
import { colorsOf, heat, ink, kindColor, partColor, rgb } from "../colors.js";
import { brackets, prevailing, regionAt, runs, zoomed } from "../layoutmap.js";
import { twinOf } from "../state.js";
import { bytes, filesOf, hex, percent, plural, shape, sizeOf, visible, whole } from "../text.js";
import { Answer, Choice, headsOf, Name, Section, useAnswer, useSize } from "../ui.js";
import { Compared } from "./pair.js";

const LINE = 17, GAP = 3, LINES = 24;
const SHARDS = 64; // drawn one above the other
const MODES = { part: "Part", layer: "Layer", type: "Type", member: "Member", opcode: "Opcode" };
/** Opcodes of a pickle by what they do; the others push a value. */
const OPCODES = [["import", /GLOBAL$|^INST$|^EXT/, "--c2"], ["call", /^REDUCE$|^NEWOBJ|^BUILD$|^OBJ$|PERSID$/, "--c4"], ["structure", /^MARK$|APPEND|SETITEM|^EMPTY_|TUPLE|LIST$|DICT$|ADDITEMS|FROZENSET|POP|DUP/, "--c3"], ["memo", /PUT$|GET$|^MEMOIZE$/, "--c8"], ["frame", /^PROTO$|^FRAME$|^STOP$/, "--head"], ["value", /./, "--c1"]];
const opcodeColor = (name) => `var(${OPCODES.find(([, names]) => names.test(name))[2]})`;

export function Layout({ models, lists, model, place, go }) {
  const two = models.length > 1, shown = two ? [0, 1] : [model];
  const [spot, setSpot] = useState({}); // a tensor of one map, which the other follows
  const twin = two && spot.tensor !== undefined ? twinOf(lists[1 - spot.model], lists[spot.model].at(spot.tensor)) : -1;
  return html`${shown.map((m) => html`<${ModelMap} key=${m} model=${m} letter=${two ? "AB"[m] : ""} info=${models[m]} list=${lists[m]} place=${m === model ? place : { color: place.color }} go=${(change) => go({ model: m, ...change })} lines=${two ? 12 : LINES}
      follow=${spot.model === 1 - m ? twin : -1} point=${two ? (tensor) => setSpot({ model: m, tensor }) : undefined} />`)}
    ${two && html`<${Both} models=${models} place=${place} /><${Moves} place=${place} />`}`;
}

/** What the files of two models consist of. */
function Both({ models, place }) {
  const answers = [0, 1].map((m) => useAnswer("layout", { model: m, file: Math.min(Number(place.file ?? 0), models[m].files.length - 1) }).data);
  if (!answers.every(Boolean)) return null;
  const sums = answers.map((data) => {
    const starts = data.start.map(Number), sum = { regions: starts.length };
    starts.forEach((start, i) => {
      const kind = data.kinds[data.kind[i]], key = kind === "tensor" || kind === "padding" || kind === "unknown" ? kind : "header";
      sum[key] = (sum[key] ?? 0) + (i + 1 < starts.length ? starts[i + 1] : data.size) - start;
    });
    return { ...sum, size: data.size };
  });
  const of = (what, key) => [what, ...sums.map((sum) => (sum[key] ? `${bytes(sum[key])} (${percent(sum[key] / sum.size)})` : "none"))];
  return html`<${Section} title="Both layouts"><${Compared} label="Both layouts" numbers heads=${headsOf(models)} rows=${[
    ["Files", ...models.map((m) => whole(filesOf(m).length))], ["Size of this file", ...sums.map(({ size }) => `${whole(size)} B`)],
    of("Tensors", "tensor"), of("Headers", "header"), of("Padding", "padding"), of("Unknown", "unknown"), ["Regions", ...sums.map(({ regions }) => whole(regions))],
  ]} /><//>`;
}

/** The files of one model, one above the other, each as high as its share of the bytes. */
function ModelMap({ model, letter, info, list, place, go, lines, follow, point }) {
  const files = filesOf(info), file = Math.min(Number(place.file ?? 0), info.files.length - 1);
  const sum = sizeOf(info) || 1, first = Math.max(0, Math.min(files.findIndex((f) => f.number >= file) - SHARDS / 2, files.length - SHARDS));
  const shown = files.slice(first, first + SHARDS);
  const several = files.length > 1;
  const high = (f) => (several ? Math.max(2, Math.round((f.size / sum) * Math.max(lines, shown.length * 3))) : lines);
  return html`<${Section} title=${html`<span>${letter && html`<b class="letter">${letter}</b> `}${several ? plural(files.length, "file") : html`<${Name} text=${files[0].name} />`}</span>`} note=${`${bytes(sum)}${shown.length < files.length ? `, ${shown.length} of them shown` : ""}`}>
    ${shown.map((f, i) => html`<${Answer} key=${f.number} name="layout" given=${{ model, file: f.number }}>${(data) => html`
      <${Map} model=${model} data=${data} list=${list} place=${f.number === file ? place : { color: place.color }} go=${(change) => go({ file: f.number, ...change })} lines=${high(f)} name=${several ? f.name : ""} head=${i === 0} follow=${follow} point=${point} />`}<//>`)}<//>`;
}

/** The ways to colour a map that tell something, the most telling first. Of a pickle that lists the tensors of other files, they are those of the other files. */
function modesOf(data, list, alone) {
  const parts = list.parts.filter((_, i) => list.part.includes(i)), layers = list.layer.some((l) => l >= 0);
  return [...(data.members.length > 1 ? ["member"] : []), ...(data.kinds.includes("opcode") && (alone || data.kinds.includes("tensor")) ? ["opcode"] : []), ...(parts.some((p) => p !== "other") ? ["part"] : []), ...(layers ? ["layer"] : []), "type"];
}

/** `name`: of one of several files; the first, `head`, has the choice of colours for all. Zoom and readout are those of
 * the file that the reader is at. `follow`: the tensor to mark, which the reader is at in the other model's map; `point`
 * takes the one that the reader is at here. */
function Map({ model, data, list, place, go, lines, name, head, follow, point }) {
  const starts = useMemo(() => data.start.map(Number), [data]);
  const modes = useMemo(() => modesOf(data, list, !name), [data, list, name]), mode = modes.includes(place.color) ? place.color : modes[0];
  const own = Boolean(name) && data.kinds.includes("opcode") && !data.kinds.includes("tensor"); // a pickle beside the files of the tensors
  const regions = useMemo(() => regionsOf(data, list, starts, own ? "opcode" : mode, !name || own), [data, list, mode]);
  const common = useMemo(() => (own && head ? regionsOf(data, list, starts, mode, false) : regions).legend, [regions]);
  const picked = place.tensor === undefined ? -1 : data.labels.indexOf(Number(place.tensor));
  const [range, setRange] = useState([0, data.size]);
  const [at, setAt] = useState(picked >= 0 ? starts[picked] : 0);
  const [active, setActive] = useState(!name || picked >= 0);
  useEffect(() => picked >= 0 && setAt(starts[picked]), [picked]);
  useEffect(() => {
    const twin = follow >= 0 ? data.labels.indexOf(follow) : -1;
    if (twin >= 0) setAt(starts[twin]), setActive(true);
  }, [follow]);
  const move = (byte) => {
    setActive(true);
    setAt(byte);
    point?.(regions.at(regionAt(starts, byte))?.tensor);
  };
  const zoom = (factor, around = at) => setRange((old) => zoomed(old, data.size, around, factor));
  const current = regions.at(regionAt(starts, at));
  const label = name ? ` of ${visible(name)}` : "";
  return html`
    ${head && name && html`<div class="tools"><${Colours} modes=${modes} mode=${mode} go=${go} /><${Legend} entries=${common} /></div>`}
    ${name && html`<h3><${Name} text=${name} /> <small>${bytes(data.size)}</small></h3>${own && html`<div class="tools"><${Legend} entries=${regions.legend} /></div>`}`}
    ${active && html`<div class="tools">
      ${!name && html`<${Colours} modes=${modes} mode=${mode} go=${go} />`}
      <div class="choice" role="group" aria-label=${`Zoom${label}`}><button type="button" onClick=${() => zoom(0.5)} aria-label="Zoom in">+</button><button type="button" onClick=${() => zoom(2)} aria-label="Zoom out">−</button>
        <button type="button" onClick=${() => setRange([0, data.size])}>Whole file</button>
        ${current && html`<button type="button" onClick=${() => setRange(around(current, data.size))}>This region</button>`}</div>
      <span class="quiet">${whole(range[0])} – ${whole(range[1])}, ${range[1] - range[0] === data.size ? "the whole file" : bytes(range[1] - range[0])}</span>
      ${!name && html`<${Legend} entries=${regions.legend} />`}
    </div>`}
    <${Canvas} data=${data} starts=${starts} regions=${regions} layered=${list.layer.some((l) => l >= 0)} range=${range} at=${active ? at : -1} setAt=${move} zoom=${zoom} lines=${lines} setRange=${setRange} label=${label} open=${(byte) => go({ panel: "microscope", at: byte, mode: "bytes" })} />
    ${current && active && html`<p class="readout" role="status"><i class="dot" style=${{ background: current.color }}></i><b>${whole(at)}</b> <span class="quiet">${hex(at)}</span> ${current.kind} ${current.label !== current.kind && html`<${Name} text=${current.label} />`}
      <span class="quiet">${current.tensor !== undefined && `${shape(current.shape)}, ${current.dtype}, `}${whole(current.start)} – ${whole(current.end)}, ${bytes(current.end - current.start)}</span>
      ${current.tensor !== undefined && html`<${Thumbnail} model=${model} tensor=${current.tensor} nbytes=${current.end - current.start} />`}
      ${holds("bytes") && html`<button type="button" class="small" onClick=${() => go({ panel: "microscope", at, mode: "bytes" })}>Open in the microscope</button>`}
      ${current.tensor !== undefined && html`<button type="button" class="small" onClick=${() => go({ panel: "tensors", tensor: current.tensor })}>Show the tensor</button>`}</p>`}
    <${Twin} regions=${regions} range=${range} size=${data.size} starts=${starts} />`;
}

function Colours({ modes, mode, go }) {
  return modes.length > 1 && html`<${Choice} label="Colour by" options=${modes.map((m) => [m, MODES[m]])} value=${mode} onChange=${(m) => go({ color: m })} />`;
}

const READ = 32_000_000; // bytes of a tensor that are read for a thumbnail
const REST = 300; // milliseconds that the pointer stays on a tensor

/** A small histogram of a tensor that the pointer rests on. Nobody waits for it, and a large tensor isn't read. */
function Thumbnail({ model, tensor, nbytes }) {
  const [rested, setRested] = useState(-1);
  useEffect(() => {
    const timer = setTimeout(() => setRested(tensor), REST);
    return () => clearTimeout(timer);
  }, [tensor]);
  const wanted = rested === tensor && nbytes <= READ && (!isExported() || holdsValues());
  const counts = useAnswer("statistics", { model, tensor }, wanted).data?.histogram.counts;
  if (!wanted || !counts?.length) return null;
  const most = Math.max(...counts, 1), each = 96 / counts.length;
  const bars = counts.map((n, i) => `M${(i * each).toFixed(1)} 22v-${((n / most) * 21).toFixed(1)}h${each.toFixed(1)}V22z`).join("");
  return html`<svg class="thumbnail" width="96" height="22" viewBox="0 0 96 22" role="img" aria-label="Histogram of its values"><path d=${bars} /></svg>`;
}

const around = (r, size) => {
  const pad = Math.max(Math.round((r.end - r.start) * 0.05), 16);
  return [Math.max(0, r.start - pad), Math.min(size, r.end + pad)];
};

/** The regions with what the page shows of them, made when they are looked at. `piece`: what is named on the map as one,
 * a region or a member of a zip. `legend`: the colours that occur, with their names. */
function regionsOf(data, list, starts, mode, alone) {
  const members = data.members.map(([first]) => first), names = data.members.map(([, name]) => name);
  const memberOf = (i) => (members.length && i >= members[0] ? regionAt(members, i) : -1), byMember = colorsOf(names.map((_, i) => i));
  const tensorOf = (i) => (typeof data.labels[i] === "number" ? data.labels[i] : undefined);
  const layerOf = (i) => (tensorOf(i) === undefined ? -1 : list.layer[tensorOf(i)]);
  const layers = mode === "layer" ? list.layer.reduce((most, l) => Math.max(most, l), 0) : 0;
  const byLayer = { [-1]: "var(--c8)" }, layerColor = (layer) => (byLayer[layer] ??= heat(layers ? layer / layers : 0).ground);
  const colorOf = (i) => {
    const tensor = tensorOf(i), kind = data.kinds[data.kind[i]];
    if (mode === "member" && memberOf(i) >= 0) return byMember.get(memberOf(i));
    if (tensor === undefined) return mode === "opcode" && kind === "opcode" ? opcodeColor(data.labels[i]) : kindColor(kind);
    if (mode === "part") return partColor(list.parts[list.part[tensor]]);
    return mode === "layer" ? layerColor(list.layer[tensor]) : list.colors.get(list.dtypes[list.dtype[tensor]]);
  };
  const one = (i) => {
    const kind = data.kinds[data.kind[i]], tensor = tensorOf(i);
    return {
      kind, tensor, dtype: tensor === undefined ? "" : list.dtypes[list.dtype[tensor]], shape: tensor === undefined ? [] : list.shapes[list.shape[tensor]],
      label: tensor === undefined ? data.labels[i] : list.names[tensor], start: starts[i], end: i + 1 < starts.length ? starts[i + 1] : data.size, color: colorOf(i),
    };
  };
  const pieceOf = (i) => (mode === "member" && memberOf(i) >= 0 ? members[memberOf(i)] : i);
  const nameOf = (i) => (mode === "member" && memberOf(i) >= 0 ? names[memberOf(i)] : tensorOf(i) === undefined ? data.labels[i] || data.kinds[data.kind[i]] : list.names[tensorOf(i)]);
  return { length: starts.length, at: (i) => (i < starts.length ? one(i) : undefined), colorOf, pieceOf, nameOf, layerOf, legend: inSight(legendOf(data, list, mode, names, byMember, layerColor, layers), alone && new Set(starts.map((_, i) => colorOf(i)))) };
}

const LEGEND = 12; // entries

/** The entries whose colour occurs in the map; all of them for the map of one of several files, which has the legend of all. */
const inSight = (entries, colors) => (colors ? entries.filter(([, color]) => colors.has(color)) : entries);

/** [name, colour] of what the maps of the model show. */
function legendOf(data, list, mode, members, byMember, layerColor, layers) {
  const kinds = new Set(data.kinds.filter((k) => k !== "tensor").map((k) => (k === "padding" || k === "unknown" ? k : "header")));
  const rest = [...kinds].map((kind) => [kind, kindColor(kind)]);
  if (mode === "member") return members.slice(0, LEGEND).map((name, i) => [name, byMember.get(i)]);
  if (mode === "layer") return [...new Set([0, Math.round(layers / 2), layers])].map((l) => [`layer ${l}`, layerColor(l)]).concat([["no layer", layerColor(-1)]], rest);
  if (mode === "opcode") return OPCODES.map(([name, , color]) => [name, `var(${color})`]).concat(rest.filter(([kind]) => kind !== "header"));
  if (mode === "part") return list.parts.filter((_, i) => list.part.includes(i)).map((name) => [name, partColor(name)]).concat(rest);
  return [...list.colors].slice(0, LEGEND).concat(rest);
}

function Legend({ entries }) {
  return html`<span class="keyed">${entries.map(([name, color]) => html`<span><i class="dot" style=${{ background: color }}></i>${visible(name)}</span>`)}</span>`;
}

function Canvas({ data, starts, regions, layered, range, at, setAt, zoom, lines, setRange, label, open }) {
  const [box, [width]] = useSize();
  const canvas = useRef(null), drag = useRef(null);
  const gutter = useMemo(() => (layered ? (width < 500 ? 30 : 46) : 0), [layered, width]);
  const [lo, hi] = range, columns = Math.min(Math.max(width - gutter, 0), 4096), cells = columns * lines;
  const cellOf = (byte) => Math.floor((byte - lo) / (hi - lo) * cells);
  const byteAt = (e) => {
    const area = canvas.current.getBoundingClientRect();
    const line = Math.min(lines - 1, Math.max(0, Math.floor((e.clientY - area.top) / (LINE + GAP))));
    const column = Math.min(columns - 1, Math.max(0, e.clientX - area.left - gutter));
    return Math.min(data.size - 1, Math.floor(lo + (line * columns + column) / cells * (hi - lo)));
  };
  useEffect(() => {
    if (columns > 0) draw(canvas.current, { data, starts, regions, range, columns, lines, gutter, mark: at < 0 ? -1 : cellOf(at) });
  });
  useEffect(() => {
    const wheel = (e) => {
      if (!e.ctrlKey && !e.metaKey) return; // the page scrolls, unless zooming is meant
      e.preventDefault();
      zoom(Math.exp(e.deltaY / 300), byteAt(e));
    };
    canvas.current.addEventListener("wheel", wheel, { passive: false });
    return () => canvas.current?.removeEventListener("wheel", wheel);
  });
  const step = Math.max(1, Math.floor((hi - lo) / 200));
  const keys = {
    ArrowRight: () => setAt(Math.min(data.size - 1, at + step)), ArrowLeft: () => setAt(Math.max(0, at - step)),
    ArrowDown: () => setAt(Math.min(data.size - 1, at + Math.ceil((hi - lo) / lines))), ArrowUp: () => setAt(Math.max(0, at - Math.ceil((hi - lo) / lines))),
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => setRange([0, data.size]), Enter: () => holds("bytes") && open(at),
    "]": () => setAt(regions.at(Math.min(starts.length - 1, regionAt(starts, at) + 1)).start), "[": () => setAt(regions.at(Math.max(0, regionAt(starts, at) - 1)).start),
  };
  const press = (e) => keys[e.key] && !e.ctrlKey && !e.metaKey && (e.preventDefault(), keys[e.key]());
  return html`<div class="map" ref=${box}>
    <canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="map of the file" style=${{ height: `${lines * (LINE + GAP)}px` }}
      aria-label=${`Map${label || " of the file"}. Arrows move, plus and minus zoom, brackets jump from region to region${holds("bytes") ? ", Enter opens the microscope" : ""}.`} onKeyDown=${press} onFocus=${() => setAt(Math.max(at, 0))}
      onPointerDown=${(e) => ((drag.current = byteAt(e)), setAt(drag.current))}
      onPointerMove=${(e) => (drag.current === null || drag.current === undefined) && e.pointerType === "mouse" && setAt(byteAt(e))}
      onPointerUp=${(e) => {
        const from = drag.current, to = byteAt(e);
        drag.current = null;
        if (Math.abs(cellOf(from) - cellOf(to)) > 8) setRange(zoomed([Math.min(from, to), Math.max(from, to)], data.size, (from + to) / 2, 1));
      }} onDblClick=${(e) => zoom(0.25, byteAt(e))}></canvas></div>`;
}

function draw(canvas, { data, starts, regions, range: [lo, hi], columns, lines, gutter, mark }) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = (columns + gutter) * ratio;
  canvas.height = lines * (LINE + GAP) * ratio;
  const cells = prevailing(starts, data.size, lo, hi, columns * lines);
  const strip = new OffscreenCanvas(columns, lines), brush = strip.getContext("2d");
  const image = brush.createImageData(columns, lines), colors = {}, rgbOf = (color) => (colors[color] ??= rgb(color));
  const ground = rgb("var(--card)"), { pieceOf } = regions;
  for (let i = 0; i < cells.length; i++) {
    if (cells[i] < 0) continue;
    const piece = pieceOf(cells[i]), ahead = cells[Math.min(i + 4, cells.length - 1)];
    const begins = i > 0 && cells[i - 1] >= 0 && pieceOf(cells[i - 1]) !== piece && ahead >= 0 && pieceOf(ahead) === piece;
    const [r, g, b] = begins ? ground : rgbOf(regions.colorOf(cells[i])); // a gap keeps neighbours of one colour apart
    image.data.set([r, g, b, 255], i * 4);
  }
  brush.putImageData(image, 0, 0);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.imageSmoothingEnabled = false;
  for (let line = 0; line < lines; line++) pen.drawImage(strip, 0, line, columns, 1, gutter, line * (LINE + GAP), columns, LINE);
  canvas.names = writeNames(pen, runs(cells, columns, pieceOf), gutter, regions, rgbOf);
  canvas.layers = gutter ? writeLayers(pen, brackets(cells, columns, regions.layerOf), gutter, rgbOf) : [];
  if (mark >= 0 && mark < cells.length) {
    const x = (mark % columns), y = Math.floor(mark / columns) * (LINE + GAP);
    const box = [gutter + Math.max(0.75, Math.min(x - 1, columns - 3.75)), y + 0.75, 3, LINE - 1.5]; // left of a name that begins there
    pen.fillStyle = css(ground);
    pen.fillRect(...box);
    pen.strokeStyle = css(rgbOf("var(--ink)"));
    pen.lineWidth = 1.5;
    pen.strokeRect(...box);
  }
}

const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
const NARROW = 40; // pixels; a piece below has no name

/** Names of pieces, each on the first line where it is wide enough; the beginning of a name gives way to its end. */
function writeNames(pen, pieces, gutter, regions, rgbOf) {
  const named = new Set(), written = [];
  pen.font = "11px ui-monospace, Menlo, Consolas, monospace";
  pen.textBaseline = "middle";
  const each = pen.measureText("m").width;
  for (const { line, from, to, piece, region } of pieces) {
    if (to - from < NARROW || named.has(piece)) continue;
    const text = shortened(visible(regions.nameOf(region)), Math.floor((to - from - 10) / each));
    if (!text) continue;
    named.add(piece);
    written.push(text);
    pen.fillStyle = ink(rgbOf(regions.colorOf(region)));
    pen.fillText(text, gutter + from + 5, line * (LINE + GAP) + LINE / 2 + 0.5);
  }
  return written;
}

/** `model.layers.3.mlp.up_proj.weight` -> as many of its last words as fit. */
function shortened(text, most) {
  let rest = text.replace(/\.weight(\.in_sum2|\.counts)?$/, "");
  if (text.length <= most) return text;
  while (rest.length > most && /[./]/.test(rest)) rest = rest.replace(/^[^./]*[./]/, "");
  return rest.length <= most ? rest : "";
}

/** Brackets with the numbers of the layers, left of their lines. */
function writeLayers(pen, found, gutter, rgbOf) {
  pen.fillStyle = pen.strokeStyle = css(rgbOf("var(--quiet)"));
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.font = "11px system-ui, sans-serif";
  for (const { first, last, text } of found) {
    const top = first * (LINE + GAP) + 1, bottom = last * (LINE + GAP) + LINE - 1, x = gutter - 6.5;
    pen.beginPath();
    for (const [i, [px, py]] of [[x + 4, top], [x, top], [x, bottom], [x + 4, bottom]].entries()) pen[i ? "lineTo" : "moveTo"](px, py);
    pen.stroke();
    pen.fillText(text, x - 3, (top + bottom) / 2 + 0.5, gutter - 12);
  }
  pen.textAlign = "left";
  return found.map(({ text }) => text);
}

const LISTED = 100;

/** The same as a table: the regions in sight. */
function Twin({ regions, range, starts }) {
  const first = regionAt(starts, range[0]);
  const last = Math.min(regionAt(starts, Math.max(range[1] - 1, range[0])) + 1, starts.length);
  const rows = Array.from({ length: Math.min(last - first, LISTED) }, (_, i) => regions.at(first + i)).filter(Boolean);
  return html`<details><summary>${plural(last - first, "region")} in sight as a table${last - first > LISTED ? `, the first ${LISTED}` : ""}</summary>
    <div class="scroll tall" tabindex="0" role="region" aria-label="Regions"><table><thead><tr><th>kind</th><th>what</th><th>type</th><th class="n">start</th><th class="n">bytes</th></tr></thead><tbody>
    ${rows.map((r) => html`<tr><td><i class="dot" style=${{ background: r.color }}></i>${r.kind}</td><th scope="row"><${Name} text=${r.label} /></th><td>${r.dtype}</td><td class="n">${whole(r.start)}</td><td class="n">${whole(r.end - r.start)}</td></tr>`)}
    </tbody></table></div></details>`;
}

/** The regions of the first files of two models that don't lie at the same place. */
function Moves({ place }) {
  return html`<${Section} title="What moved"><${Answer} name="moves" given=${{ file: Number(place.file ?? 0) }}>${(data) => html`
    <p class="quiet">${plural(data.total, "region")} at another place, of another size, or in one file only.</p>
    ${data.rows.length > 0 && html`<div class="scroll tall" tabindex="0" role="region" aria-label="What moved"><table class="moves"><thead><tr><th>what</th><th class="n">start in A</th><th class="n">bytes</th><th class="n">start in B</th><th class="n">bytes</th><th class="n">moved by</th></tr></thead><tbody>
    ${data.rows.map((r) => html`<tr><th scope="row"><${Name} text=${r.label || r.kind} /></th>${[[r.a_start, r.a_size], [r.b_start, r.b_size]].map(([s, n]) => html`<td class="n">${s < 0 ? "–" : whole(s)}</td><td class="n">${s < 0 ? "–" : whole(n)}</td>`)}<td class="n">${r.shift === null ? "" : (r.shift > 0 ? "+" : "") + whole(r.shift)}</td></tr>`)}
    </tbody></table></div>`}`}<//><//>`;
}
