// Draws an artifact's curves and paths from the JSON in the page. Plotly stands in the page before.
"use strict";

const data = JSON.parse(document.getElementById("figure").textContent);
const hidden = new Set();  // rows that the legend has switched off
const DASHES = { solid: "", dash: "7 4", dot: "1.5 3", dashdot: "7 3 1.5 3" };
const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };

function layout(title, x, y, log) {
  return {
    title: { text: title, font: { size: 15 }, x: 0.02, xanchor: "left" },
    font: { family: "system-ui, sans-serif", size: 13, color: "#1a1a1a" },
    margin: { l: 64, r: 12, t: 40, b: 48 },
    height: 420,
    showlegend: false,
    hovermode: "closest",
    xaxis: { title: { text: x }, gridcolor: "#e3e3e3", zeroline: false, automargin: true },
    yaxis: { title: { text: y }, gridcolor: "#e3e3e3", zeroline: false, automargin: true,
      type: log ? "log" : "linear", exponentformat: "power" },
  };
}

function transparent(colour) {
  const part = (i) => parseInt(colour.slice(i, i + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},0.15)`;
}

// A curve that others are drawn over is wider than they are, so that it is seen below them.
function width(i, n) {
  return 4 - 2.2 * i / Math.max(1, n - 1);
}

// The x axis ends where the data end.
function range(drawn) {
  const xs = drawn.flatMap((trace) => trace.x);
  return xs.length && Math.min(...xs) < Math.max(...xs) ? [Math.min(...xs), Math.max(...xs)] : undefined;
}

function traces(lines, metric, axis, log) {
  const found = [];
  const shown = lines.filter((l) => !hidden.has(l.row));
  for (const [i, line] of shown.entries()) {
    const points = line.y[metric]
      .map(([mean, error], i) => ({ x: line.x[axis][i], mean, error: error ?? 0 }))
      .filter((p) => p.x !== null && p.mean !== null && (!log || p.mean > 0));
    if (!points.length) continue;
    const low = points.map((p) => (log ? Math.max(p.mean - p.error, p.mean / 100) : p.mean - p.error));
    const high = points.map((p) => p.mean + p.error);
    const xs = points.map((p) => p.x);
    if (line.n > 1) {
      found.push({ x: xs.concat([...xs].reverse()), y: high.concat([...low].reverse()), fill: "toself",
        fillcolor: transparent(line.colour), line: { width: 0 }, mode: "lines", hoverinfo: "skip" });
    }
    found.push({ x: xs, y: points.map((p) => p.mean), name: line.row, mode: "lines",
      line: { color: line.colour, dash: line.dash, width: width(i, shown.length) },
      hovertemplate: `${line.row}: %{y:.4g} at %{x:.4g}<extra>n = ${line.n}</extra>` });
    if (metric in line.published) {
      found.push({ x: [xs[xs.length - 1]], y: [line.published[metric]], mode: "markers", cliponaxis: false,
        marker: { symbol: "diamond-open", size: 9, color: line.colour, line: { width: 2 } },
        hovertemplate: `${line.row}, as published: %{y:.4g}<extra></extra>` });
    }
  }
  return found;
}

function decades(drawn) {
  const values = drawn.flatMap((trace) => trace.y);
  return values.length ? Math.log10(Math.max(...values) / Math.min(...values)) : 0;
}

function panel(parent, name) {
  const box = document.createElement("div");
  box.className = "plot";
  box.dataset.variant = name;
  parent.append(box);
  return box;
}

function drawCurves() {
  const metric = data.metrics.find((m) => m.name === document.getElementById("metric").value);
  const axis = data.axes.find((a) => a.name === document.getElementById("axis").value);
  const log = document.getElementById("log").checked;
  for (const box of document.getElementById("curves").children) {
    const drawn = traces(data.variants[box.dataset.variant], metric.name, axis.name, log);
    const look = layout(`${box.dataset.variant} variant`, axis.label, metric.label, log);
    look.xaxis.range = range(drawn);
    if (log) look.yaxis.dtick = decades(drawn) > 1.5 ? Math.ceil(decades(drawn) / 8) : "D2";
    Plotly.react(box, drawn, look, CONFIG);
  }
}

function drawPlane(box, plane) {
  const found = [];
  if (plane.z) {
    found.push({ type: "contour", x: plane.grid[0], y: plane.grid[1], z: plane.z, ncontours: 16,
      contours: { coloring: "none" }, line: { width: 0.7, color: "#b5b5b5" }, showscale: false,
      hoverinfo: "skip" });
  }
  const shown = plane.lines.filter((l) => !hidden.has(l.row));
  for (const [i, line] of shown.entries()) {
    const n = line.x.length - 1;
    found.push({ x: line.x, y: line.y, mode: "lines", name: line.row,
      line: { color: line.colour, dash: line.dash, width: width(i, shown.length) } });
    found.push({ x: [line.x[0], line.x[n]], y: [line.y[0], line.y[n]], mode: "markers", name: line.row,
      marker: { size: 9, color: ["#ffffff", line.colour], line: { color: line.colour, width: 2 } } });
  }
  if (plane.optimum) {
    found.push({ x: [plane.optimum[0]], y: [plane.optimum[1]], mode: "markers", name: "optimum",
      marker: { symbol: "star", size: 16, color: "#000000" } });
  }
  if (plane.goal) {
    found.push({ x: [plane.goal[0]], y: [plane.goal[1]], mode: "markers", name: "goal of f",
      marker: { symbol: "x-thin", size: 11, line: { width: 2, color: "#000000" } } });
  }
  const title = plane.optimum ? `${box.dataset.variant} variant, optimum (${plane.optimum.join(", ")})`
    : `${box.dataset.variant} variant`;
  const look = layout(title, plane.labels[0], plane.labels[1], false);
  look.xaxis.range = plane.ranges[0];
  look.yaxis.range = plane.ranges[1];
  Plotly.react(box, found, look, CONFIG);
}

function drawPlanes() {
  const parent = document.getElementById("planes");
  for (const box of parent ? parent.children : []) drawPlane(box, data.planes[box.dataset.variant]);
}

// One legend for all plots of the page: a method looks the same in each of them.
function legend() {
  const rows = new Map(Object.values(data.variants).flat().map((line) => [line.row, line]));
  for (const line of rows.values()) {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.innerHTML = `<svg width="30" height="8" aria-hidden="true"><line x1="1" y1="4" x2="29" y2="4"
      stroke="${line.colour}" stroke-width="2.5" stroke-dasharray="${DASHES[line.dash]}"/></svg>`;
    button.append(line.row);
    button.addEventListener("click", () => {
      if (!hidden.delete(line.row)) hidden.add(line.row);
      button.setAttribute("aria-pressed", String(!hidden.has(line.row)));
      drawCurves();
      drawPlanes();
    });
    document.getElementById("legend").append(button);
  }
}

if (document.getElementById("curves")) {
  const fill = (id, options) => {
    for (const { name, label } of options) document.getElementById(id).add(new Option(label, name));
  };
  fill("metric", data.metrics);
  fill("axis", data.axes);
  const log = document.getElementById("log");
  const own = () => data.metrics.find((m) => m.name === document.getElementById("metric").value).log;
  log.checked = own();
  for (const variant of Object.keys(data.variants)) {
    if (data.variants[variant].length) panel(document.getElementById("curves"), variant);
  }
  document.getElementById("metric").addEventListener("change", () => { log.checked = own(); drawCurves(); });
  document.getElementById("axis").addEventListener("change", drawCurves);
  log.addEventListener("change", drawCurves);
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  legend();
  drawCurves();
}
if (document.getElementById("planes")) {
  for (const variant of Object.keys(data.planes)) panel(document.getElementById("planes"), variant);
  drawPlanes();
}
