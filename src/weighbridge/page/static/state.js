// Where the reader is: a panel, a tensor, a byte. It stands in the address, so that Back and reload work.
import { useEffect, useState } from "./vendor/htm-preact.js";
import { takeToken } from "./api.js";
import { colorsOf } from "./colors.js";

/** The place that the address names; the token isn't part of it, or it would be written back. */
function read() {
  const { t, ...place } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return place;
}

/** [place, go]: `go({panel: "layout", tensor: 3})` changes some of it. */
export function usePlace() {
  const [place, setPlace] = useState(read);
  useEffect(() => {
    const moved = () => (takeToken(), setPlace(read())); // the address of a new server may be opened in this tab
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const go = (change) => {
    const next = { ...place, ...change };
    for (const key of Object.keys(next)) if (next[key] === undefined || next[key] === null) delete next[key];
    const text = "#" + new URLSearchParams(next);
    try {
      history[next.panel !== place.panel ? "pushState" : "replaceState"](null, "", text);
    } catch { /* a frame without an address of its own */ }
    setPlace(Object.fromEntries(Object.entries(next).map(([k, v]) => [k, String(v)])));
  };
  return [place, go];
}

/** The list of tensors as the page uses it: columns, and names undone. */
export function tensorList(columns) {
  const { common, rest } = columns.names;
  let before = "";
  const names = rest.map((end, i) => (before = before.slice(0, common[i]) + end));
  const at = (i) => ({
    number: i, name: names[i], dtype: columns.dtypes[columns.dtype[i]], shape: columns.shapes[columns.shape[i]],
    role: columns.roles[columns.role[i]], part: columns.parts[columns.part[i]], layer: columns.layer[i],
    packing: columns.packings[columns.packing[i]], file: columns.file[i], fileName: columns.files[columns.file[i]],
    nbytes: Number(columns.nbytes[i]), offset: Number(columns.offset[i]), parameters: Number(columns.parameters[i]),
  });
  return { ...columns, names, lower: null, length: names.length, at, colors: colorsOf(bySize(columns)) };
}

/** The number of a tensor's twin in another list: of the same name, or of the same role and layer; -1 without one. */
export function twinOf(list, tensor) {
  if (!tensor || !list) return -1;
  const named = list.names.indexOf(tensor.name);
  return named >= 0 ? named : list.layer.findIndex((layer, i) => layer === tensor.layer && list.roles[list.role[i]] === tensor.role);
}

/** The number types, the one with most bytes first. */
function bySize({ dtypes, dtype, nbytes }) {
  const sums = dtypes.map(() => 0);
  dtype.forEach((d, i) => (sums[d] += Number(nbytes[i])));
  return dtypes.map((_, i) => i).sort((a, b) => sums[b] - sums[a] || (dtypes[a] < dtypes[b] ? -1 : 1)).map((i) => dtypes[i]);
}
