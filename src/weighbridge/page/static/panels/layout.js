// The file as a map: every byte coloured by what it is, from the whole file down to single bytes. Of two models, one map
// above the other, and what moved.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { kindColor, rgb } from "../colors.js";
import { prevailing, regionAt, zoomed } from "../layoutmap.js";
import { bytes, hex, plural, visible, whole } from "../text.js";
import { Answer, Name, Section, useSize } from "../ui.js";

const LINE = 14, GAP = 3, LINES = 24;

export function Layout({ models, lists, model, place, go }) {
  const shown = models.length > 1 ? models.map((_, i) => i) : [model];
  return html`${shown.map((m) => html`<${FileMap} key=${m} model=${m} info=${models[m]} list=${lists[m]} place=${m === model ? place : {}} go=${(change) => go({ model: m, ...change })} lines=${shown.length > 1 ? 12 : LINES} />`)}
    ${models.length > 1 && html`<${Moves} place=${place} />`}`;
}

function FileMap({ model, info, list, place, go, lines }) {
  const file = Math.min(Number(place.file ?? 0), info.files.length - 1);
  const pick = info.files.length > 1 && html`<select aria-label="File" value=${String(file)} onChange=${(e) => go({ file: Number(e.target.value), at: undefined, tensor: undefined })}>
    ${info.files.map((f, i) => html`<option value=${String(i)}>${visible(f.name)}, ${bytes(f.size)}</option>`)}</select>`;
  return html`<${Section} title=${html`<${Name} text=${info.files[file].name} />`} note=${pick || bytes(info.files[file].size)}>
    <${Answer} name="layout" given=${{ model, file }}>${(data) => html`<${Map} key=${file} data=${data} list=${list} place=${place} go=${(change) => go({ file, ...change })} lines=${lines} />`}<//><//>`;
}

function Map({ data, list, place, go, lines }) {
  const starts = useMemo(() => data.start.map(Number), [data]);
  const regions = useMemo(() => regionsOf(data, list, starts), [data, list]);
  const picked = place.tensor === undefined ? -1 : data.labels.indexOf(Number(place.tensor));
  const [range, setRange] = useState([0, data.size]);
  const [at, setAt] = useState(picked >= 0 ? starts[picked] : 0);
  useEffect(() => picked >= 0 && setAt(starts[picked]), [picked]);
  const zoom = (factor, around = at) => setRange((old) => zoomed(old, data.size, around, factor));
  const current = regions.at(regionAt(starts, at));
  return html`
    <div class="tools">
      <div class="choice" role="group" aria-label="Zoom"><button type="button" onClick=${() => zoom(0.5)} aria-label="Zoom in">+</button><button type="button" onClick=${() => zoom(2)} aria-label="Zoom out">−</button>
        <button type="button" onClick=${() => setRange([0, data.size])}>Whole file</button>
        ${current && html`<button type="button" onClick=${() => setRange(around(current, data.size))}>This region</button>`}</div>
      <span class="quiet">${whole(range[0])} – ${whole(range[1])}, ${range[1] - range[0] === data.size ? "the whole file" : bytes(range[1] - range[0])}</span>
      <${Legend} regions=${regions} />
    </div>
    <${Canvas} data=${data} starts=${starts} regions=${regions} range=${range} at=${at} setAt=${setAt} zoom=${zoom} lines=${lines} setRange=${setRange} open=${(byte) => go({ panel: "microscope", at: byte, mode: "bytes" })} />
    ${current && html`<p class="readout" role="status"><i class="dot" style=${{ background: current.color }}></i><b>${whole(at)}</b> <span class="quiet">${hex(at)}</span> ${current.kind} ${current.label !== current.kind && html`<${Name} text=${current.label} />`}
      <span class="quiet">${current.dtype} ${whole(current.start)} – ${whole(current.end)}, ${bytes(current.end - current.start)}</span>
      <button type="button" class="small" onClick=${() => go({ panel: "microscope", at, mode: "bytes" })}>Open in the microscope</button>
      ${current.tensor !== undefined && html`<button type="button" class="small" onClick=${() => go({ panel: "tensors", tensor: current.tensor })}>Show the tensor</button>`}</p>`}
    <${Twin} regions=${regions} range=${range} size=${data.size} starts=${starts} />`;
}

const around = (r, size) => {
  const pad = Math.max(Math.round((r.end - r.start) * 0.05), 16);
  return [Math.max(0, r.start - pad), Math.min(size, r.end + pad)];
};

/** The regions with what the page shows of them, made when they are looked at. */
function regionsOf(data, list, starts) {
  const one = (i) => {
    const kind = data.kinds[data.kind[i]], tensor = typeof data.labels[i] === "number" ? data.labels[i] : undefined;
    const dtype = tensor === undefined ? "" : list.dtypes[list.dtype[tensor]];
    return {
      kind, tensor, dtype, label: tensor === undefined ? data.labels[i] : list.names[tensor], start: starts[i], end: i + 1 < starts.length ? starts[i + 1] : data.size,
      color: dtype ? list.colors.get(dtype) : kindColor(kind),
    };
  };
  return { length: starts.length, at: (i) => (i < starts.length ? one(i) : undefined), colors: list.colors, dtypes: list.dtypes, kinds: data.kinds };
}

function Legend({ regions }) {
  const others = regions.kinds.filter((k) => k !== "tensor");
  const names = [["header", "--head", others.some((k) => k !== "padding" && k !== "unknown")], ["padding", "--pad", others.includes("padding")], ["unknown", "--bad", others.includes("unknown")]];
  return html`<span class="keyed">${[...regions.colors.keys()].map((d) => html`<span><i class="dot" style=${{ background: regions.colors.get(d) }}></i>${d}</span>`)}
    ${names.filter(([, , there]) => there).map(([name, color]) => html`<span><i class="dot" style=${{ background: `var(${color})` }}></i>${name}</span>`)}</span>`;
}

function Canvas({ data, starts, regions, range, at, setAt, zoom, lines, setRange, open }) {
  const [box, [width]] = useSize();
  const canvas = useRef(null), drag = useRef(null);
  const [lo, hi] = range, columns = Math.min(width, 4096), cells = columns * lines;
  const cellOf = (byte) => Math.floor((byte - lo) / (hi - lo) * cells);
  const byteAt = (e) => {
    const area = canvas.current.getBoundingClientRect();
    const line = Math.min(lines - 1, Math.max(0, Math.floor((e.clientY - area.top) / (LINE + GAP))));
    const column = Math.min(columns - 1, Math.max(0, e.clientX - area.left));
    return Math.min(data.size - 1, Math.floor(lo + (line * columns + column) / cells * (hi - lo)));
  };
  useEffect(() => {
    if (columns > 0) draw(canvas.current, data, starts, regions, range, columns, lines, cellOf(at));
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
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => setRange([0, data.size]), Enter: () => open(at),
    "]": () => setAt(regions.at(Math.min(starts.length - 1, regionAt(starts, at) + 1)).start), "[": () => setAt(regions.at(Math.max(0, regionAt(starts, at) - 1)).start),
  };
  const press = (e) => keys[e.key] && !e.ctrlKey && !e.metaKey && (e.preventDefault(), keys[e.key]());
  return html`<div class="map" ref=${box}>
    <canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="map of the file" style=${{ height: `${lines * (LINE + GAP)}px` }}
      aria-label="Map of the file. Arrows move, plus and minus zoom, brackets jump from region to region, Enter opens the microscope." onKeyDown=${press}
      onPointerDown=${(e) => ((drag.current = byteAt(e)), setAt(drag.current))}
      onPointerMove=${(e) => (drag.current === null || drag.current === undefined) && e.pointerType === "mouse" && setAt(byteAt(e))}
      onPointerUp=${(e) => {
        const from = drag.current, to = byteAt(e);
        drag.current = null;
        if (Math.abs(cellOf(from) - cellOf(to)) > 8) setRange(zoomed([Math.min(from, to), Math.max(from, to)], data.size, (from + to) / 2, 1));
      }} onDblClick=${(e) => zoom(0.25, byteAt(e))}></canvas></div>`;
}

function draw(canvas, data, starts, regions, [lo, hi], columns, lines, mark) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = columns * ratio;
  canvas.height = lines * (LINE + GAP) * ratio;
  const cells = prevailing(starts, data.size, lo, hi, columns * lines);
  const strip = new OffscreenCanvas(columns, lines), brush = strip.getContext("2d");
  const image = brush.createImageData(columns, lines), colors = {};
  const ground = rgb("var(--card)");
  for (let i = 0; i < cells.length; i++) {
    if (cells[i] < 0) continue;
    const color = regions.at(cells[i]).color;
    const begins = i > 0 && cells[i - 1] !== cells[i] && cells[Math.min(i + 4, cells.length - 1)] === cells[i];
    const [r, g, b] = begins ? ground : (colors[color] ??= rgb(color)); // a gap keeps neighbours of one type apart
    image.data.set([r, g, b, 255], i * 4);
  }
  brush.putImageData(image, 0, 0);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.imageSmoothingEnabled = false;
  for (let line = 0; line < lines; line++) pen.drawImage(strip, 0, line, columns, 1, 0, line * (LINE + GAP), columns, LINE);
  if (mark >= 0 && mark < cells.length) {
    const x = mark % columns, y = Math.floor(mark / columns) * (LINE + GAP);
    const [r, g, b] = rgb("var(--ink)");
    pen.strokeStyle = `rgb(${r} ${g} ${b})`;
    pen.lineWidth = 1.5;
    pen.strokeRect(Math.max(0.75, Math.min(x - 3, columns - 7)), y + 0.75, 6, LINE - 1.5);
  }
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
