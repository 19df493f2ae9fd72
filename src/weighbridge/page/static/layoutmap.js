// The arithmetic of the layout map: which region fills a cell, where a byte is. No drawing.

/** Region `i` of a layout is bytes [start[i], start[i + 1]); the last ends at `size`. */
export function regionAt(starts, offset) {
  let low = 0, high = starts.length - 1;
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (starts[mid] <= offset) low = mid;
    else high = mid - 1;
  }
  return low;
}

/** For each of `cells` equal pieces of bytes [lo, hi): the region that most of the piece belongs to; -1 without any. */
export function prevailing(starts, size, lo, hi, cells) {
  const out = new Int32Array(cells).fill(-1);
  if (!starts.length) return out;
  const each = (hi - lo) / cells;
  let region = regionAt(starts, lo);
  const end = (i) => (i + 1 < starts.length ? starts[i + 1] : size);
  for (let cell = 0; cell < cells; cell++) {
    const from = lo + cell * each, to = from + each;
    while (end(region) <= from && region + 1 < starts.length) region++;
    let most = -1;
    for (let r = region; r < starts.length && starts[r] < to; r++) {
      const inside = Math.min(end(r), to) - Math.max(starts[r], from);
      if (inside > most) [most, out[cell]] = [inside, r];
    }
  }
  return out;
}

/** Bytes [lo, hi) after a zoom by `factor` around `at`, within the file and no less than 64 bytes. */
export function zoomed([lo, hi], size, at, factor) {
  const span = Math.min(Math.max(Math.round((hi - lo) * factor), Math.min(64, size)), size);
  const share = hi > lo ? (at - lo) / (hi - lo) : 0.5;
  const from = Math.round(Math.min(Math.max(at - span * share, 0), size - span));
  return [from, from + span];
}

/** Neighbouring cells of one line that show the same piece: [{line, from, to, piece}]; `pieceOf` numbers a region's. */
export function runs(cells, columns, pieceOf) {
  const found = [];
  for (let i = 0; i < cells.length; i++) {
    const piece = cells[i] < 0 ? -1 : pieceOf(cells[i]), last = found.at(-1), line = Math.floor(i / columns);
    if (last && last.piece === piece && last.line === line) last.to = (i % columns) + 1;
    else found.push({ line, from: i % columns, to: (i % columns) + 1, piece, region: cells[i] });
  }
  return found.filter((run) => run.piece >= 0);
}

/** The layers at the side of the lines: [{first, last, text}] for lines with the same ones. `layerOf`: -1 outside. */
export function brackets(cells, columns, layerOf) {
  const found = [];
  for (let line = 0; line * columns < cells.length; line++) {
    let low = Infinity, high = -1;
    for (let i = line * columns; i < (line + 1) * columns; i++) {
      const layer = cells[i] < 0 ? -1 : layerOf(cells[i]);
      if (layer >= 0) [low, high] = [Math.min(low, layer), Math.max(high, layer)];
    }
    if (high < 0) continue;
    const text = low === high ? String(low) : `${low}–${high}`, last = found.at(-1);
    if (last?.text === text && last.last === line - 1) last.last = line;
    else found.push({ first: line, last: line, text });
  }
  return found;
}
