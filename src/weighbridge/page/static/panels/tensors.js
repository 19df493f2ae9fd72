// A list of all tensors, a hundred thousand if there are as many: a tree with equal layers folded, or flat rows that are
// searched, filtered and sorted. Only the rows in sight exist.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { holds, isExported } from "../api.js";
import { colorsOf, partColor } from "../colors.js";
import { firstOpen, matching, sorted, treeRows } from "../search.js";
import { bytes, count, hex, plural, shape, visible, whole } from "../text.js";
import { Amount, Choice, Copy, Empty, Facts, Name, NameInRow, Section, useAnswer, useWindow, Waiting } from "../ui.js";

const ROW = 26;

export function Tensors({ model, list, place, go }) {
  const quick = useAnswer("tree", { model, counted: 0 }, !isExported()); // weights are counted later
  const counted = useAnswer("tree", { model, counted: 1 });
  const tree = counted.data ?? quick.data;
  return tree ? html`<${Browser} tree=${tree} list=${list} place=${place} go=${go} />` : html`<${Waiting} state=${counted} what="Reading names" />`;
}

/** The tree shows at once; searching, sorting and details need the list of all tensors, which may come later. */
function Browser({ tree, list, place, go }) {
  const [text, setText] = useState(place.q ?? "");
  const [dtype, setDtype] = useState("");
  const [least, setLeast] = useState("0");
  const [order, setOrder] = useState(["file", 1]);
  const [asTree, setAsTree] = useState(true);
  const [open, setOpen] = useState(() => firstOpen(tree));
  const ready = list?.length !== undefined;
  const filtered = Boolean(text || dtype || least !== "0");
  const plain = asTree && !filtered && order[0] === "file";
  const found = useMemo(() => (ready && !plain ? matching(list, text, dtype, Number(least)) : []), [list, text, dtype, least, plain]);
  const rows = useMemo(() => (plain ? treeRows(tree, open) : sorted(list, found, order)), [tree, list, found, order, plain, open]);
  const picked = place.tensor === undefined || !ready ? null : list.at(Number(place.tensor));
  const toggle = (key) => setOpen((old) => (old.has(key) ? new Set([...old].filter((k) => k !== key)) : new Set([...old, key])));
  const size = useMemo(() => (filtered ? found.reduce((sum, i) => sum + Number(list.nbytes[i]), 0) : tree.nodes.reduce((sum, n) => sum + n.nbytes, 0)), [found, filtered]);
  const colors = useMemo(() => colorsOf(tree.dtypes), [tree]);
  return html`<div class="split">
    <${Section} className="grow">
      <div class="tools" role="search">
        <input type="search" class="find" aria-label="Search tensors" placeholder="Search names: layers.3 q_proj" value=${text} onInput=${(e) => setText(e.target.value)} />
        <select aria-label="Number type" value=${dtype} onChange=${(e) => setDtype(e.target.value)}>
          <option value="">Any type</option>${tree.dtypes.map((d) => html`<option value=${d}>${d}</option>`)}</select>
        <select aria-label="Size" value=${least} onChange=${(e) => setLeast(e.target.value)}>
          ${[[0, "Any size"], [1e5, "≥ 100 kB"], [1e6, "≥ 1 MB"], [1e7, "≥ 10 MB"], [1e8, "≥ 100 MB"]].map(([n, t]) => html`<option value=${String(n)}>${t}</option>`)}</select>
        <${Choice} label="Form" options=${[[true, "Tree"], [false, "List"]]} value=${asTree} onChange=${(v) => (setAsTree(v), setOrder(["file", 1]))} />
        <span class="quiet" role="status" aria-live="polite">${filtered && ready ? `${whole(found.length)} of ${plural(tree.tensors, "tensor")}` : plural(tree.tensors, "tensor")}, ${bytes(size)}</span>
      </div>
      ${plain || ready ? html`<${Rows} list=${list} colors=${colors} rows=${rows} tree=${plain} order=${order} setOrder=${(o) => (setAsTree(false), setOrder(o))} open=${open} toggle=${toggle}
        picked=${picked?.number} pick=${(n) => go({ tensor: n })} />` : html`<${Waiting} state=${list ?? {}} what="Reading names" />`}
    <//>
    ${picked && html`<${Details} tensor=${picked} list=${list} go=${go} />`}
  </div>`;
}

const COLUMNS = [["name", "name", ""], ["dtype", "type", ""], ["shape", "shape", ""], ["parameters", "weights", "n"], ["nbytes", "size", "n"]];

/** The grid. One row is in the tab order; arrows move it. */
function Rows({ list, colors, rows, tree, order, setOrder, open, toggle, picked, pick }) {
  const { ref, first, last, full, top, show } = useWindow(rows.length, ROW);
  const [at, setAt] = useState(0);
  const typed = useRef({ text: "", when: 0 });
  const focus = useRef(false);
  const row = Math.min(at, Math.max(rows.length - 1, 0));
  useEffect(() => setAt(0), [rows.length, tree]);
  useEffect(() => {
    if (focus.current) ref.current.querySelector(`[data-row="${row}"]`)?.focus({ preventScroll: true });
  });
  const move = (to) => {
    const next = Math.max(0, Math.min(rows.length - 1, to));
    focus.current = true;
    show(next);
    setAt(next);
  };
  const act = (r) => (r.key ? toggle(r.key) : pick(r.number));
  const above = () => rows.findLastIndex((r, i) => i < row && r.depth < rows[row].depth);
  const keys = {
    ArrowDown: () => move(row + 1), ArrowUp: () => move(row - 1), Home: () => move(0), End: () => move(rows.length - 1),
    PageDown: () => move(row + 20), PageUp: () => move(row - 20), Enter: () => act(rows[row]), " ": () => act(rows[row]),
    ArrowRight: () => rows[row].key && (open.has(rows[row].key) ? move(row + 1) : toggle(rows[row].key)),
    ArrowLeft: () => (rows[row].key && open.has(rows[row].key) ? toggle(rows[row].key) : tree && above() >= 0 && move(above())),
  };
  const press = (e) => {
    if (!rows.length || e.ctrlKey || e.metaKey || e.altKey) return;
    if (keys[e.key]) keys[e.key]();
    else if (e.key.length === 1) typeAhead(e.key);
    else return;
    e.preventDefault();
  };
  const typeAhead = (c) => {
    const now = Date.now(), t = typed.current;
    typed.current = { text: (now - t.when < 800 ? t.text : "") + c.toLowerCase(), when: now };
    const label = (r) => (r.label ?? list.names[r.number]).toLowerCase();
    const hit = [...rows.keys()].map((i) => (i + row + (typed.current.text.length > 1 ? 0 : 1)) % rows.length).find((i) => label(rows[i]).startsWith(typed.current.text));
    if (hit !== undefined) move(hit);
  };
  const sort = (key) => setOrder(order[0] === key ? [key, -order[1]] : [key, key === "nbytes" || key === "parameters" ? -1 : 1]);
  return html`<div class="grid" role="treegrid" aria-label="Tensors" aria-rowcount=${rows.length + 1} aria-colcount="5" aria-readonly="true">
    <div role="rowgroup"><div class="row head" role="row" aria-rowindex="1">${COLUMNS.map(([key, title, kind]) => html`
      <span role="columnheader" class=${kind} aria-sort=${order[0] === key ? (order[1] > 0 ? "ascending" : "descending") : "none"}>
        <button type="button" onClick=${() => sort(key)}>${title}${order[0] === key ? (order[1] > 0 ? " ↑" : " ↓") : ""}</button></span>`)}</div></div>
    <div class="rows" ref=${ref} style=${{ maxHeight: `${Math.max(rows.length, 3) * ROW + 16}px` }} role="rowgroup" tabindex=${rows.length ? -1 : 0} onKeyDown=${press} onFocusOut=${() => (focus.current = false)}>
      <div style=${{ height: `${full}px`, position: "relative" }} role="presentation">
        <div style=${{ transform: `translateY(${top}px)` }} role="presentation">
        ${rows.slice(first, last).map((r, i) => html`<${Row} key=${r.key ?? r.number} tensor=${r.label === undefined ? list.at(r.number) : r} colors=${colors} row=${r} index=${first + i} current=${first + i === row} open=${open.has(r.key)}
          picked=${r.number !== undefined && r.number === picked} act=${() => (setAt(first + i), (focus.current = true), act(r))} />`)}
        </div></div>
      ${!rows.length && html`<${Empty}>No tensor matches.<//>`}
    </div></div>`;
}

/** `tensor`: what the row shows, of the list or a node of the tree. */
function Row({ tensor: t, colors, row, index, current, open, picked, act }) {
  const indent = { paddingInlineStart: `calc(${row.depth ?? 0} * var(--step, 16px) + 6px)` };
  const group = row.children?.length > 0;
  const dtype = t.dtype ?? t.dtypes[0];
  return html`<div class=${`row${picked ? " picked" : ""}${group ? " group" : ""}`} role="row" aria-rowindex=${index + 2} aria-level=${(row.depth ?? 0) + 1}
      aria-expanded=${group ? String(open) : undefined} aria-selected=${String(picked)} tabindex=${current ? 0 : -1} data-row=${index} onClick=${act}>
    <span role="gridcell" style=${indent}>${group ? html`<i class="turn">${open ? "▾" : "▸"}</i>` : html`<i class="turn"></i>`}<${NameInRow} text=${row.label ?? t.name} />${row.repeat > 1 && html` <b class="times">× ${row.repeat}</b>`}</span>
    <span role="gridcell">${group ? html`<span class="quiet whole">${t.dtypes.join(", ")}</span><span class="quiet brief" title=${t.dtypes.join(", ")}>${t.dtypes[0]}${t.dtypes.length > 1 ? ` +${t.dtypes.length - 1}` : ""}</span>` : html`<i class="dot" style=${{ background: colors.get(dtype) }}></i>${dtype}`}</span>
    <span role="gridcell">${group ? html`<span class="quiet">${plural(t.tensors, "tensor")}</span>` : shape(t.shape)}</span>
    <span role="gridcell" class="n">${t.parameters === null ? "…" : t.parameters === 0 ? html`<${Amount} text="–" />` : html`<${Amount} text=${count(t.parameters)} />`}</span>
    <span role="gridcell" class="n"><${Amount} text=${bytes(t.nbytes)} /></span></div>`;
}

/** All about one tensor, and the ways from it to the other panels. */
function Details({ tensor, list, go }) {
  const way = (panel, text) => html`<button type="button" class="small" onClick=${() => go({ panel, tensor: tensor.number, file: tensor.file, at: undefined, block: undefined, mode: undefined })}>${text}</button>`;
  return html`<aside class="card side" aria-label="Selected tensor">
    <h2><${Name} text=${tensor.name} /><button type="button" class="small" onClick=${() => go({ tensor: undefined })} aria-label="Close">✕</button></h2>
    <${Facts} rows=${[
      ["Type", tensor.dtype], ["Shape", shape(tensor.shape)], ["Role", html`<${Name} text=${tensor.role} />`, true],
      ["Part", html`<i class="dot" style=${{ background: partColor(tensor.part) }}></i>${tensor.part}`], ["Layer", tensor.layer < 0 ? null : tensor.layer],
      ["Weights", whole(tensor.parameters)], ["Bytes", whole(tensor.nbytes)],
      ["Bits per weight", tensor.parameters ? (tensor.nbytes * 8 / tensor.parameters).toFixed(2) : null],
      ["Packing", tensor.packing || null], ["File", html`<${Name} text=${tensor.fileName} />`, true], ["Offset", `${whole(tensor.offset)} (${hex(tensor.offset)})`, true],
    ]} />
    <p class="ways">${way("layout", "Show in the file")} ${holds("bytes") && way("microscope", "Show its bytes")} ${way("numbers", "Show its numbers")} <${Copy} text=${visible(tensor.name)} label="Copy name" /></p>
  </aside>`;
}
