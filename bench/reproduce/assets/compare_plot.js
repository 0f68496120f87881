// The comparison's plot: a mean with its band for each group, single runs where they are asked for.
"use strict";

const DASHES = { solid: "", dash: "7 4", dot: "1.5 3", dashdot: "7 3 1.5 3" };
const MOST_SINGLE = 300; // single runs that are drawn

function lineOf(group) {
  const { method, problem: solved } = data.groups[group];
  const { colour, dash } = data.methods[method];
  // problems together: a method keeps its colour, and a problem has a dash
  return { color: colour, dash: problem() < 0 ? Object.keys(DASHES)[solved % 4] : dash };
}

function faint(colour, alpha) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
}

function chosen() {
  return { name: metric(), axis: at("axis").value, weight: Number(at("smoothing").value), times: factor(metric()) };
}

// What can be drawn of values: smoothed, in per cent where that is usual, positive on a logarithmic axis.
function shape(values, { weight, times }, least) {
  const scaled = (weight > 0 ? smooth(values, weight) : values).map((v) => (v === null ? null : v * times));
  return at("logy").checked ? scaled.map((v) => (v === null || v > 0 ? v : least)) : scaled;
}

function tracesOf(group) {
  const choice = chosen();
  const [x, y, half] = [curve(group, choice.axis), curve(group, choice.name), reach(group, choice.name)];
  if (!x || !y) return [];
  const line = lineOf(group);
  const name = groupName(group);
  const drawn = shape(y, choice, null);
  const traces = [];
  if (half && data.groups[group].n > 1) {
    const least = Math.min(...drawn.filter((v) => v > 0)) / 10;
    const edge = (sign) => shape(y.map((v, i) => (v === null || half[i] === null ? null : v + sign * half[i])), choice, least);
    const band = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: name };
    traces.push({ ...band, y: edge(-1) }, { ...band, y: edge(1), fill: "tonexty", fillcolor: faint(line.color, 0.18) });
  }
  traces.push({ x, y: drawn, name, mode: "lines", line: { ...line, width: 2 }, legendgroup: name, meta: { group },
    hovertemplate: `${name}, n = ${data.groups[group].n}<br>%{y:.4g} at %{x:.4g}<extra></extra>` });
  return traces;
}

function singleTraces() {
  const choice = chosen();
  const wanted = new Set(picked);
  if (at("single").checked) [...shown].forEach((group) => membersOf[group].forEach((run) => wanted.add(run)));
  const there = [...wanted].filter((run) => single.has(run) && column(run, choice.name) && column(run, choice.axis));
  return there.slice(0, MOST_SINGLE).map((run) => {
    const group = data.runs.group[run];
    const strong = picked.has(run);
    return {
      x: column(run, choice.axis), y: shape(column(run, choice.name), choice, null), mode: "lines", showlegend: strong,
      name: `${groupName(group)}, seed ${data.runs.seed[run]}`, meta: { run },
      line: { color: strong ? lineOf(group).color : faint(lineOf(group).color, 0.45), width: strong ? 2 : 0.8 },
      hovertemplate: `${groupName(group)}, seed ${data.runs.seed[run]}<br>%{y:.4g} at %{x:.4g}<extra></extra>`,
    };
  });
}

// Lines to hold the curves against, such as a training without any tuning.
function referenceLines() {
  const references = data.problems[problem()]?.references ?? {};
  const own = Object.entries(references).filter(([label]) => label.startsWith(`${metric()} of `));
  return own.map(([label, value]) => ({ label: label.slice(metric().length + 4), value: value * factor(metric()) }));
}

function layout() {
  const { name, axis, weight } = chosen();
  const lines = referenceLines();
  return {
    font: { family: "system-ui, sans-serif", size: 13, color: "#1a1a1a" }, height: 480, hovermode: "closest",
    margin: { l: 64, r: 24, t: 16, b: 48 }, showlegend: false, uirevision: `${name} ${axis}`,
    xaxis: { title: { text: labelOf(axis) }, gridcolor: "#e3e3e3", zeroline: false, automargin: true,
      type: at("logx").checked ? "log" : "linear", exponentformat: at("logx").checked ? "power" : "none", separatethousands: true },
    yaxis: { title: { text: labelOf(name) + (weight > 0 ? `, smoothed ${weight}` : "") }, gridcolor: "#e3e3e3",
      zeroline: false, automargin: true, type: at("logy").checked ? "log" : "linear", exponentformat: "power" },
    shapes: lines.map(({ value }) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value,
      line: { color: "#555555", width: 1.2, dash: "dot" } })),
    annotations: lines.map(({ label, value }) => ({ xref: "paper", x: 1, xanchor: "right", yanchor: "bottom", showarrow: false,
      y: at("logy").checked ? Math.log10(value) : value, text: label, font: { size: 12, color: "#555555" } })),
  };
}

function traces() {
  // in the order of the table, the best on top
  const groups = visible().filter((group) => shown.has(group)).reverse();
  return [...groups.flatMap(tracesOf), ...singleTraces()];
}

function drawPlot() {
  const drawn = traces();
  Plotly.react(at("plot"), drawn, layout(), { responsive: true, displaylogo: false });
  drawLegend();
  const many = drawn.filter((trace) => trace.meta?.group !== undefined).length;
  const runs = drawn.filter((trace) => trace.meta?.run !== undefined).length;
  const bands = drawn.some((trace) => trace.fill);
  const band = bands ? " with the 95% interval of the mean (Student's)" : "";
  const single = runs ? `; ${runs} single runs` : "";
  at("what").textContent = `${many} of ${visible().length} methods drawn: means over seeds${band}${single}`;
}

function drawLegend() {
  const groups = visible();
  const listed = groups.length > MOST_DRAWN ? groups.filter((group) => shown.has(group)).slice(0, MOST_DRAWN) : groups;
  at("legend").replaceChildren(...listed.map((group) => {
    const line = lineOf(group);
    const button = element("button", "", { type: "button" });
    button.innerHTML = `<svg width="30" height="8" aria-hidden="true"><line x1="1" y1="4" x2="29" y2="4"
      stroke="${line.color}" stroke-width="2.5" stroke-dasharray="${DASHES[line.dash]}"/></svg>`;
    button.append(groupName(group));
    button.setAttribute("aria-pressed", String(shown.has(group)));
    button.addEventListener("click", () => toggle(group));
    return button;
  }));
}

function toggle(group) {
  if (shown.has(group)) shown.delete(group); else shown.add(group);
  if (at("single").checked) loadRuns([...shown]);
  redraw();
}

async function saveDrawing() {
  const figure = { data: traces(), layout: { ...layout(), showlegend: true, width: 900, height: 520, legend: { font: { size: 12 } } } };
  const url = await Plotly.toImage(figure, { format: "svg", width: 900, height: 520 });
  save(decodeURIComponent(url.slice(url.indexOf(",") + 1)), "image/svg+xml", "comparison.svg");
}
