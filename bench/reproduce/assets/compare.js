// The dashboard over run folders, from the JSON in the page.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const FALLBACK = ["#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#555555", "#000000"];
const DASHES = { solid: "", dash: "7 4", dot: "1.5 3", dashdot: "7 3 1.5 3" };
const DRAWN = 8;
const checked = new Set();
const order = { key: null, up: true };

data.runs.forEach((run, i) => { run.id = i; });
const algorithms = [...new Set(data.runs.map((run) => run.algorithm))];

function columns() {
  const metric = at("metric").value;
  const few = data.settings.filter((key) => key !== "task._target_" && key !== "algorithm._target_").slice(0, 8);
  return [
    ["task", (r) => r.task], ["algorithm", (r) => r.algorithm], ["seed", (r) => r.seed], ["run", (r) => r.key],
    ["state", (r) => r.state], [data.metrics[metric], (r) => r.last[metric]],
    ["steps", (r) => r.last.step], ["seconds", (r) => r.last.seconds],
    ...few.map((key) => [key, (r) => (key in r.settings ? text(r.settings[key]) : "")]),
  ];
}

function text(value) {
  return value === null ? "null" : Array.isArray(value) ? `[${value.join(",")}]` : String(value);
}

function visible() {
  const is = (id, value) => at(id).value === "" || at(id).value === String(value);
  const wanted = at("setting").value.trim();
  const [key, value] = wanted.split("=");
  const fits = (run) => !wanted || (value === undefined
    ? Object.entries(run.settings).some(([k, v]) => `${k}=${text(v)}`.includes(wanted))
    : key in run.settings && text(run.settings[key]) === value);
  const runs = data.runs.filter((r) => is("task", r.task) && is("algorithm", r.algorithm)
    && is("seed", r.seed) && is("state", r.state) && fits(r));
  const column = columns().find(([name]) => name === order.key);
  if (column) {
    const value = column[1];
    runs.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      const [without, other] = [x === null || x === undefined, y === null || y === undefined];
      if (without || other) return without - other;
      const less = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return order.up ? less : -less;
    });
  }
  return runs;
}

function overlaid(runs) {
  const some = data.runs.filter((run) => checked.has(run.id));
  return some.length ? some : runs.filter((run) => at("metric").value in run.curves).slice(0, DRAWN);
}

function style(run, i, many) {
  const [colour, dash] = data.styles[run.algorithm] ?? [FALLBACK[algorithms.indexOf(run.algorithm) % 8], "solid"];
  // one algorithm with many settings: its colour would tell nothing
  return many ? { color: FALLBACK[i % 8], dash: ["solid", "dash", "dot"][Math.floor(i / 8) % 3] } : { color: colour, dash };
}

function draw(runs) {
  const [metric, axis, log] = [at("metric").value, at("axis").value, at("log").checked];
  const many = new Set(runs.map((r) => r.algorithm)).size === 1;
  const traces = runs.filter((r) => metric in r.curves && axis in r.curves).map((run, i) => ({
    x: run.curves[axis], y: run.curves[metric].map((v) => (log && v <= 0 ? null : v)), mode: "lines",
    name: `${run.algorithm} ${run.key}, seed ${run.seed}`, line: { ...style(run, i, many), width: 1.8 },
  }));
  Plotly.react(at("plot"), traces, {
    font: { family: "system-ui, sans-serif", size: 13, color: "#1a1a1a" }, height: 520, hovermode: "closest",
    margin: { l: 64, r: 12, t: 16, b: 48 },
    xaxis: { title: { text: data.metrics[axis] }, gridcolor: "#e3e3e3", zeroline: false, automargin: true },
    yaxis: { title: { text: data.metrics[metric] }, gridcolor: "#e3e3e3", zeroline: false, automargin: true,
      type: log ? "log" : "linear", exponentformat: "power" },
    showlegend: false,
  }, { responsive: true, displaylogo: false });
  at("legend").replaceChildren(...traces.map(({ name, line }) => {
    const entry = document.createElement("span");
    entry.innerHTML = `<svg width="30" height="8" aria-hidden="true"><line x1="1" y1="4" x2="29" y2="4"
      stroke="${line.color}" stroke-width="2.5" stroke-dasharray="${DASHES[line.dash]}"/></svg>`;
    entry.append(name);
    return entry;
  }));
  at("what").textContent = `${traces.length} of ${visible().length} runs drawn, ${data.runs.length} in all`;
}

function element(name, content, attributes = {}) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(content);
  return made;
}

function shown(value) {
  if (value === undefined) return "–";
  return typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : value === null ? "not finite" : String(value);
}

function table(runs) {
  const head = document.createElement("tr");
  head.append(element("th", ""));
  for (const [name] of columns()) {
    const arrow = order.key === name ? (order.up ? " ▲" : " ▼") : "";
    const cell = element("th", name + arrow, { className: "sortable" });
    cell.addEventListener("click", () => {
      order.up = order.key === name ? !order.up : true;
      order.key = name;
      redraw();
    });
    head.append(cell);
  }
  at("head").replaceChildren(head);
  const rows = runs.map((run) => {
    const row = document.createElement("tr");
    if (run.state === "diverged") row.className = "failed";
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: checked.has(run.id) });
    box.setAttribute("aria-label", `draw ${run.key}`);
    box.addEventListener("change", () => {
      if (box.checked) checked.add(run.id); else checked.delete(run.id);
      overlay();
    });
    const first = document.createElement("td");
    first.append(box);
    row.append(first, ...columns().map(([, value]) => element("td", shown(value(run)))));
    return row;
  });
  at("body").replaceChildren(...rows);
}

function difference(runs) {
  const some = runs.filter((run) => checked.has(run.id));
  const keys = data.settings.filter((key) => new Set(some.map((r) => JSON.stringify(r.settings[key]))).size > 1);
  if (some.length < 2) return at("difference").replaceChildren();
  const head = document.createElement("tr");
  head.append(element("th", "setting"), ...some.map((r) => element("th", `${r.algorithm} ${r.key}`)));
  const rows = keys.map((key) => {
    const row = document.createElement("tr");
    row.append(element("td", key), ...some.map((r) => element("td", key in r.settings ? text(r.settings[key]) : "–")));
    return row;
  });
  const made = element("table", head);
  made.append(...rows);
  const wide = element("div", made, { className: "wide" });
  return at("difference").replaceChildren(element("h2", "Settings that differ"), wide);
}

function overlay() {
  const runs = overlaid(visible());
  draw(runs);
  difference(runs);
}

function redraw() {
  table(visible());
  overlay();
}

for (const id of ["task", "algorithm", "seed", "state"]) {
  at(id).add(new Option("all", ""));
  const values = [...new Set(data.runs.map((run) => run[id]))];
  for (const value of values.sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(b)))) {
    at(id).add(new Option(value, value));
  }
  at(id).addEventListener("change", redraw);
}
for (const [name, label] of Object.entries(data.metrics)) {
  at("metric").add(new Option(label, name, false, name === data.first));
  if (["step", "seconds", "cpu_seconds"].includes(name) || name.startsWith("calls/")) at("axis").add(new Option(label, name));
}
at("setting").addEventListener("input", redraw);
for (const id of ["metric", "axis", "log"]) at(id).addEventListener("change", redraw);
at("none").addEventListener("click", () => { checked.clear(); redraw(); });
for (const id of ["filters", "controls"]) at(id).addEventListener("submit", (event) => event.preventDefault());
redraw();
