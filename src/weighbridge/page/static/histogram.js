// A histogram, drawn by uPlot; of two tensors, one over the other.
import { html, useEffect, useRef } from "./vendor/htm-preact.js";
import { uPlot } from "./vendor/uplot.js";
import { rgb } from "./colors.js";
import { count, number, tick } from "./text.js";
import { useSize } from "./ui.js";

const HEIGHT = 260;

/** `series`: [{label, color, edges, counts}]. Shares of all counts where there are several. */
export function Histogram({ series, log }) {
  const [box, [width]] = useSize();
  const target = useRef(null);
  useEffect(() => {
    if (width < 50) return;
    const floor = log ? floorOf(least(series)) : 0;
    const plot = new uPlot(options(series, log, width, floor), aligned(series, floor), target.current);
    return () => plot.destroy();
  }, [series, log, width]);
  return html`<div ref=${box} class="plot"><div ref=${target} aria-hidden="true" style=${{ height: `${HEIGHT}px` }}></div></div>`;
}

const css = (name, alpha = 1) => {
  const [r, g, b] = rgb(name);
  return `rgb(${r} ${g} ${b} / ${alpha})`;
};

function options(series, log, width, floor) {
  const axis = { stroke: css("var(--quiet)"), grid: { stroke: css("var(--line)"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width, height: HEIGHT, legend: { show: false }, cursor: { show: false }, padding: [8, 18, 0, 0],
    scales: { x: { time: false }, y: { distr: log ? 3 : 1, range: (_, lo, hi) => [floor, log ? 10 ** Math.ceil(Math.log10(hi * 1.05)) : hi * 1.05 || 1] } },
    axes: [{ ...axis, size: 32, values: (_, ticks) => ticks.map((v) => number(v, 3)) }, { ...axis, size: 58, ...(log ? { splits: powers, filter: (_, splits) => splits } : {}), values: (_, ticks) => ticks.map((v) => (v === null ? "" : v < 1 ? (v >= 1e-3 ? number(v, 2) : v.toExponential(0)) : tick(count(v)))) }],
    series: [{}, ...series.map((s) => ({ stroke: css(s.color), fill: css(s.color, 0.28), width: 1.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }))],
  };
}

/** Below the smallest bar, and no higher than the power of ten below it, which has a label. */
const floorOf = (smallest) => Math.min(smallest / 2, 10 ** Math.floor(Math.log10(smallest)));

const POWERS = 8; // labels

/** Powers of ten in sight, at most eight, evenly spaced. */
function powers(_, __, low, high) {
  const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high * 1.0001)), step = Math.max(1, Math.ceil((last - first + 1) / POWERS));
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => 10 ** (first + i * step));
}

/** The smallest height of a bar. */
function least(series) {
  const heights = series.flatMap((s) => shares(s, series.length).filter((n) => n > 0));
  return heights.reduce((a, b) => Math.min(a, b), Infinity) || 1;
}

/** Counts; of several tensors as shares of all that each has. */
function shares({ counts }, several) {
  const total = several > 1 ? counts.reduce((a, b) => a + b, 0) || 1 : 1;
  return counts.map((n) => n / total);
}

/** Columns on the edges of all series together. What is empty lies on the floor: a logarithm has no zero. */
function aligned(series, floor) {
  const xs = [...new Set(series.flatMap((s) => s.edges))].sort((a, b) => a - b);
  return [xs, ...series.map((s) => {
    const heights = shares(s, series.length), { edges } = s;
    let bin = 0;
    return xs.map((x) => {
      while (bin < heights.length && edges[bin + 1] <= x) bin++;
      return edges.length > 0 && x >= edges[0] && bin < heights.length ? Math.max(heights[bin], floor) : floor;
    });
  })];
}
