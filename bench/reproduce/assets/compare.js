// The comparison of runs: what is chosen in the page, and the numbers that follow from it.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const MOST_DRAWN = 60; // groups that are drawn unless others are asked for
const MOST_LISTED = 200; // rows of a table, until more are asked for
const shown = new Set(); // the groups that are drawn
const picked = new Set(); // the single runs that are
const single = new Map(); // run -> its columns, as far as their script is loaded
const loading = new Set();
const membersOf = data.groups.map(() => []);
data.runs.group.forEach((group, run) => membersOf[group].push(run));

const metric = () => at("metric").value;
const problem = () => Number(at("problem").value); // -1: all
const factor = (name) => (data.metrics[name].percent ? 100 : 1);
const labelOf = (name) => data.metrics[name].label + (data.metrics[name].percent ? ", %" : "");

function settingText(value) {
  if (value === null || value === undefined) return "null";
  return Array.isArray(value) ? `[${value.join(",")}]` : String(value);
}

function groupName(group) {
  const { method, problem: solved } = data.groups[group];
  const label = data.methods[method].label;
  return problem() < 0 && data.problems.length > 1 ? `${label} — ${data.problems[solved].label}` : label;
}

// The groups that are asked for, best first; those of which nothing says who is best as they are.
function visible() {
  const wanted = at("having").value.trim().toLowerCase();
  const fits = (group) => {
    const one = data.groups[group];
    const words = [data.methods[one.method].label, data.problems[one.problem].label,
      ...Object.entries(one.settings).map(([key, value]) => `${key}=${settingText(value)}`)];
    return (problem() < 0 || one.problem === problem()) && (!wanted || words.some((w) => w.toLowerCase().includes(wanted)));
  };
  const ranked = data.ends[metric()].ranks.flat();
  const rest = data.groups.map((_, group) => group);
  return [...new Set([...ranked, ...rest])].filter(fits);
}

// The place of a group among those of its problem, from 1; null where there is none.
function rankOf(group) {
  return data.ends[metric()].places[group];
}

function curve(group, name) {
  const number = data.groups[group].mean[name];
  return number === undefined ? null : data.columns[number];
}

function reach(group, name) {
  const number = data.groups[group].reach[name];
  return number === undefined ? null : data.columns[number];
}

// Each value as a mean of those before it, which weigh less the older they are.
function smooth(values, weight) {
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function deviation(values) {
  const middle = mean(values);
  return values.length < 2 ? null : Math.sqrt(values.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (values.length - 1));
}

function plain(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en").replace("-", "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

// Numbers with as many digits as their uncertainty makes sense of: two of it.
function precise(values, uncertainty) {
  if (!uncertainty || values.some((value) => value === null)) return values.map(plain);
  const digits = 1 - Math.floor(Math.log10(uncertainty));
  if (digits > 7 || digits < -5) return values.map((value) => value.toPrecision(3).replaceAll("-", "−"));
  const [some, unit] = [Math.max(0, digits), 10 ** Math.max(0, -digits)];
  const style = { minimumFractionDigits: some, maximumFractionDigits: some };
  return values.map((value) => (Math.round(value / unit * 10 ** some) / 10 ** some * unit).toLocaleString("en", style).replace("-", "−"));
}

function plusMinus(value, spread) {
  if (value === null || value === undefined) return "–";
  if (spread === null || spread === undefined) return plain(value);
  return spread === 0 ? `${plain(value)} ± 0` : precise([value, spread], spread).join(" ± ");
}

// An interval, after the number that it belongs to where there is one.
function interval(low, high, centre) {
  if (low === null || low === undefined) return centre === undefined ? "–" : plain(centre);
  const [bottom, top, middle] = precise([low, high, centre ?? low], (high - low) / 4);
  return `${centre === undefined ? "" : `${centre > 0 ? "+" : ""}${middle} `}[${bottom}, ${top}]`;
}

// --- targets

// Nine tenths of the way from the worst start to the best end among the groups; none where no end
// is better than that start, as every run would have reached it before its first step.
function usualTarget() {
  const better = data.metrics[metric()].better;
  const curves = visible().map((group) => curve(group, metric())).filter((c) => c && c[0] !== null && c.at(-1) !== null);
  if (!curves.length || better === "neither") return "";
  const [starts, ends] = [curves.map((c) => c[0]), curves.map((c) => c.at(-1))];
  const up = better === "higher";
  const extreme = (values, most) => values.reduce((a, b) => (most ? Math.max(a, b) : Math.min(a, b)));
  const start = extreme(starts, !up);
  const end = extreme(ends, up);
  if (up ? end <= start : end >= start) return "";
  return String(Number(((start + 0.9 * (end - start)) * factor(metric())).toPrecision(4)));
}

// What each run of a group has spent when it first reaches the target; null without a target, or
// before the runs are loaded.
function spentToTarget(group) {
  const text = at("target").value.trim().replace("−", "-");
  const runs = membersOf[group].filter((run) => single.has(run));
  if (text === "" || Number.isNaN(Number(text)) || !runs.length) return null;
  const target = Number(text) / factor(metric());
  const spent = { of: runs.length, seconds: [], calls: [], samples: [], reached: 0 };
  for (const run of runs) {
    const values = column(run, metric());
    if (!values) continue;
    const better = data.metrics[metric()].better;
    const up = better === "higher" || (better === "neither" && target > values[0]);
    const i = values.findIndex((value) => value !== null && (up ? value >= target : value <= target));
    if (i < 0) continue;
    spent.reached += 1;
    for (const name of ["seconds", "calls", "samples"]) {
      const value = column(run, name)?.[i];
      if (value !== null && value !== undefined) spent[name].push(value);
    }
  }
  return spent;
}

// --- single runs, in scripts of their own

function takeRuns(found) {
  for (const [run, names] of Object.entries(found.runs)) single.set(Number(run), { names, columns: found.columns });
}

function column(run, name) {
  const { names, columns } = single.get(run);
  return name in names ? columns[names[name]] : null;
}

// Load the scripts that have these groups, and redraw when they are there.
function loadRuns(groups) {
  const wanted = new Set(groups);
  data.files.forEach((inside, file) => {
    if (loading.has(file) || !inside.some((group) => wanted.has(group))) return;
    loading.add(file);
    const script = Object.assign(document.createElement("script"), { src: `assets/runs-${file}.js` });
    script.addEventListener("load", () => { if (typeof Plotly !== "undefined") drawPlot(); drawTables(); });
    document.head.append(script);
  });
}

// --- the page

function element(name, content, attributes = {}) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...[content].flat());
  return made;
}

function save(text, kind, name) {
  const link = element("a", "", { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function saveTable(table, name) {
  const quote = (text) => `"${(/^[=+@-]/.test(text) && Number.isNaN(Number(text)) ? "'" : "") + text.replaceAll('"', '""')}"`;
  save(table.map((row) => row.map((cell) => quote(String(cell ?? ""))).join(",") + "\n").join(""), "text/csv", name);
}

function showFirst() {
  shown.clear();
  visible().slice(0, MOST_DRAWN).forEach((group) => shown.add(group));
}

function redraw() {
  if (typeof Plotly !== "undefined") drawPlot();
  drawTables();
}

// Choices that there are on this problem: its metrics, and what they can be drawn against.
function offerMetrics(wanted) {
  const groups = data.groups.filter((group) => problem() < 0 || group.problem === problem());
  const there = Object.keys(data.metrics).filter((name) => groups.some((group) => name in group.mean));
  const [before, axis] = [metric(), at("axis").value];
  at("metric").replaceChildren(...there.map((name) => new Option(data.metrics[name].label, name)));
  const axes = data.axes.filter((name) => there.includes(name));
  at("axis").replaceChildren(...axes.map((name) => new Option(data.metrics[name].label, name)));
  const choice = [wanted, before].find((name) => there.includes(name));
  if (choice) at("metric").value = choice;
  if (axes.includes(axis)) at("axis").value = axis;
}

function chooseMetric() {
  at("target").value = usualTarget();
  showFirst();
  redraw();
}

// A table that is wider than its place becomes a list of cards, with a heading at each value.
function fitTables() {
  for (const table of document.querySelectorAll("table.fit")) {
    table.classList.remove("cards");
    table.classList.toggle("cards", table.scrollWidth > table.parentElement.clientWidth);
  }
}

function startPage() {
  data.problems.forEach((one, i) => at("problem").add(new Option(one.label, i)));
  if (data.problems.length > 1) at("problem").add(new Option("all together", -1));
  else at("problem").parentElement.hidden = true;
  const first = data.groups.find((group) => data.metric in group.mean) ?? data.groups[0];
  at("problem").value = first.problem;
  offerMetrics(data.metric);
  at("problem").addEventListener("change", () => {
    const own = data.problems[problem()]?.metric;
    offerMetrics(own ?? metric());
    chooseMetric();
  });
  at("metric").addEventListener("change", chooseMetric);
  for (const id of ["axis", "logx", "logy", "smoothing"]) at(id).addEventListener("input", () => drawPlot());
  at("single").addEventListener("input", () => { loadRuns([...shown]); drawPlot(); });
  at("target").addEventListener("input", () => { loadRuns(visible()); drawTables(); });
  at("having").addEventListener("input", () => { showFirst(); redraw(); });
  at("all").addEventListener("click", () => { visible().forEach((group) => shown.add(group)); redraw(); });
  at("none").addEventListener("click", () => { shown.clear(); redraw(); });
  at("svg").addEventListener("click", () => saveDrawing());
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
  at("about").textContent = data.about;
  startTables();
  window.addEventListener("resize", fitTables);
  at("target").value = usualTarget();
  showFirst();
  drawTables();
  if (data.atOnce) window.addEventListener("load", () => loadRuns(data.groups.map((_, i) => i)));
}
