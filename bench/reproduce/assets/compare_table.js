// The comparison's tables: methods, methods by problems, settings that differ, single runs.
"use strict";

const orders = { methods: { key: null, up: true }, runs: { key: null, up: true } };
const CLASSES = { method: "name", problem: "words", n: "words", state: "words" };
const listed = { methods: MOST_LISTED, runs: MOST_LISTED };

function scaled(found, times) {
  return found && found.map((value, i) => (value === null || i === found.length - 1 ? value : value * times));
}

function endOf(group, name = metric()) {
  return scaled(data.ends[name].ends[group], factor(name));
}

function meanAtEnd(group, name) {
  const found = data.ends[name]?.ends[group];
  return found ? found[0] : null;
}

// How many values a mean is over.
function countOf(group, name = metric()) {
  return data.ends[name].ends[group]?.[4] ?? 0;
}

// How many values the mean is over, and what became of the other runs.
function countText(group) {
  const { done = 0, ...others } = data.groups[group].states;
  const n = countOf(group);
  const words = Object.entries(others).map(([state, many]) => `${many} ${state}`);
  if (!done) return `${n}, none done: ${words.join(", ")}`;
  return [n, ...(n < done ? [`${done - n} without a value`] : []), ...words].join(", ");
}

function isBest(group, name = metric()) {
  return data.ends[name].places[group] === 1 && "done" in data.groups[group].states;
}

// The difference to the best, with the number of pairs where one of the two has other seeds too.
function differenceOf(group, name = metric()) {
  const { differences, ranks } = data.ends[name];
  const found = scaled(differences[group], factor(name));
  if (!found) return "–";
  const [best] = ranks.find((order) => order.includes(group));
  const pairs = found[3];
  const some = pairs > 0 && pairs < Math.max(countOf(group, name), countOf(best, name));
  return interval(found[1], found[2], found[0]) + (some ? ` (${pairs} pairs)` : "");
}

function differenceText(group) {
  return isBest(group) ? "best" : differenceOf(group);
}

// The columns of the table of methods: heading, what is sorted by, what is shown.
function methodColumns() {
  const spent = new Map();
  const toTarget = (group) => {
    if (!spent.has(group)) spent.set(group, spentToTarget(group));
    return spent.get(group);
  };
  const costs = (name) => [(g) => (toTarget(g)?.[name].length ? mean(toTarget(g)[name]) : null), (g) => {
    const found = toTarget(g)?.[name] ?? [];
    return found.length ? plusMinus(mean(found), deviation(found)) : "–";
  }];
  const end = (name) => [(g) => meanAtEnd(g, name), (g) => plain(meanAtEnd(g, name))];
  // without data each call counts as a sample, which would say the same twice
  const sampled = data.groups.some((_, g) => meanAtEnd(g, "samples") !== meanAtEnd(g, "calls"));
  const all = problem() < 0 && data.problems.length > 1;
  return [
    ["rank", (g) => rankOf(g), (g) => rankOf(g) ?? "–"],
    ["method", (g) => data.methods[data.groups[g].method].label, (g) => data.methods[data.groups[g].method].label],
    ...(all ? [["problem", (g) => data.problems[data.groups[g].problem].label, (g) => data.problems[data.groups[g].problem].label]] : []),
    [`${labelOf(metric())}, mean ± sd`, (g) => endOf(g)?.[0] ?? null, (g) => plusMinus(...(endOf(g) ?? [null]).slice(0, 2))],
    ["95% interval", (g) => endOf(g)?.[2] ?? null, (g) => interval(...(endOf(g) ?? []).slice(2, 4))],
    ["n", (g) => countOf(g), countText],
    ["to the best", (g) => data.ends[metric()].differences[g]?.[0] ?? null, differenceText],
    ["seconds", ...end("seconds")],
    ["calls", ...end("calls")],
    ...(sampled ? [["samples", ...end("samples")]] : []),
    ["seconds to target", ...costs("seconds")],
    ["calls to target", ...costs("calls")],
    ...(sampled ? [["samples to target", ...costs("samples")]] : []),
    ["reached it", (g) => toTarget(g)?.reached ?? null, (g) => (toTarget(g) ? `${toTarget(g).reached} of ${toTarget(g).of}` : "–")],
  ];
}

function sorted(rows, columns, { key, up }) {
  const wanted = columns.find(([name]) => name === key);
  if (!wanted) return rows;
  const value = wanted[1];
  return [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    const less = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return up ? less : -less;
  });
}

// Fill a table: a box for each row, which says whether it is drawn, and the columns.
function fill(table, which, rows, columns, box) {
  const head = element("tr", element("th", ""));
  for (const [name] of columns) {
    const order = orders[which];
    const arrow = order.key === name ? (order.up ? " ▲" : " ▼") : "";
    const cell = element("th", name + arrow, { className: "sortable" });
    cell.addEventListener("click", () => {
      Object.assign(order, { up: order.key === name ? !order.up : true, key: name });
      drawTables();
    });
    head.append(cell);
  }
  table.tHead.replaceChildren(head);
  const ordered = sorted(rows, columns, orders[which]);
  table.tBodies[0].replaceChildren(...ordered.slice(0, listed[which]).map((row) => {
    const cells = columns.map(([name, , text]) => {
      const cell = element("td", String(text(row)), { className: CLASSES[name] ?? "value" });
      cell.dataset.label = name;
      return cell;
    });
    return element("tr", [element("td", box(row), { className: "box" }), ...cells]);
  }));
  return ordered;
}

function boxFor(label, checked, change) {
  const box = element("input", [], { type: "checkbox", checked });
  box.setAttribute("aria-label", label);
  box.addEventListener("change", () => change(box.checked));
  return box;
}

function moreButton(place, which, many) {
  place.replaceChildren();
  if (many <= listed[which]) return;
  const button = element("button", `show all ${many.toLocaleString("en")}`, { type: "button" });
  button.addEventListener("click", () => { listed[which] = Infinity; drawTables(); });
  place.append(button);
}

function drawMethods() {
  const groups = visible();
  fill(at("methods"), "methods", groups, methodColumns(), (group) => {
    const box = boxFor(`draw ${groupName(group)}`, shown.has(group), () => toggle(group));
    const swatch = element("span", "", { className: "swatch" });
    swatch.style.background = lineOf(group).color;
    return [box, swatch];
  });
  moreButton(at("more"), "methods", groups.length);
  const { better } = data.metrics[metric()];
  const way = better === "neither" ? "nothing says which values are better" : `${better} is better`;
  const states = groups.map((group) => data.groups[group].states);
  const some = states.some((own) => "done" in own && "diverged" in own);
  const none = states.some((own) => !("done" in own));
  const repeated = groups.filter((group) => countOf(group) > 1);
  const same = !data.axes.includes(metric()) && repeated.length > 0 && repeated.every((group) => endOf(group)[1] === 0);
  at("notes").textContent = `${data.metrics[metric()].label}: ${way}. Means are over the n values of the runs that are done${
    some ? ", and a method of which some diverged comes after those of which none did" : ""}.${
    none ? ` Where none is done they are over the runs that diverged, or else over those that are not finished, and the
    method has the last place.` : ""} To the best: the mean difference at the seeds that both have, with its 95% interval,
    or the difference of the means where they have not two in common. To the target: at the first of the rows kept here that
    reaches it.${data.times ? ` ${data.times}` : ""}${
    same ? " All seeds came to the same values: where a seed changes nothing, runs are no repetitions." : ""}`;
}

// --- methods by problems

function matrixMetric(number) {
  const there = (name) => data.groups.some((group) => group.problem === number && name in group.mean);
  return there(metric()) && data.metrics[metric()].better !== "neither" ? metric() : data.problems[number].metric;
}

function matrixCell(group, name) {
  const states = Object.entries(data.groups[group].states);
  if (!("done" in data.groups[group].states)) {
    return element("td", states.map(([state, many]) => (states.length > 1 ? `${many} ${state}` : state)).join(", "));
  }
  const { differences, places } = data.ends[name];
  const end = endOf(group, name);
  if (!end) return element("td", places[group] === null ? "–" : "no finite value");
  const best = isBest(group, name);
  const found = differences[group];
  const told = found && found[1] !== null;
  const lines = [plusMinus(end[0], end[1])];
  if (best) lines.push(element("small", "best"));
  if (found) lines.push(element("small", differenceOf(group, name)));
  return element("td", lines, { className: best || (told && found[1] <= 0 && found[2] >= 0) ? "top" : "" });
}

function drawMatrix() {
  at("matrix").hidden = data.problems.length < 2 || data.methods.length < 2;
  if (at("matrix").hidden) return;
  const table = at("matrix").querySelector("table");
  const names = data.problems.map((_, i) => matrixMetric(i));
  const found = new Map(data.groups.map((group, i) => [`${group.method} ${group.problem}`, i]));
  const head = element("tr", element("th", "method"));
  data.problems.forEach((one, i) => head.append(element("th", [one.label, element("small", labelOf(names[i]))])));
  head.append(element("th", "mean rank"));
  table.tHead.replaceChildren(head);
  const places = data.groups.map(({ problem: solved }, group) => data.ends[names[solved]].places[group]);
  const ranked = new Set(data.groups.filter((_, group) => places[group] !== null).map(({ problem: solved }) => solved)).size;
  const rows = data.methods.map((method, m) => {
    const own = data.problems.map((_, p) => found.get(`${m} ${p}`));
    const ranks = own.map((group) => places[group] ?? null).filter((place) => place !== null);
    const cells = own.map((group, p) => {
      const cell = group === undefined ? element("td", "–") : matrixCell(group, names[p]);
      cell.dataset.label = data.problems[p].label;
      return cell;
    });
    const last = element("td", ranks.length ? plain(mean(ranks)) : "–");
    if (ranks.length && ranks.length < ranked) last.append(element("small", `over ${ranks.length} of ${ranked} problems`));
    last.dataset.label = "mean rank";
    const row = element("tr", [element("td", method.label, { className: "name" }), ...cells, last]);
    return { row, many: ranks.length, order: ranks.length ? mean(ranks) : 0 };
  });
  // a method that was not run where it would lose is no better than one that was
  rows.sort((a, b) => b.many - a.many || a.order - b.order);
  table.tBodies[0].replaceChildren(...rows.slice(0, MOST_LISTED).map(({ row }) => row));
  at("measure").textContent = [...new Set(names)].length > 1 ? "its own metric" : data.metrics[names[0]].label;
}

// --- settings that differ

function drawDifference() {
  const groups = visible().filter((group) => shown.has(group)).slice(0, 8);
  const keys = data.differing.filter((key) => new Set(groups.map((g) => settingText(data.groups[g].settings[key]))).size > 1);
  if (groups.length < 2 || !keys.length) return at("difference").replaceChildren();
  const head = element("tr", [element("th", "setting"), ...groups.map((group) => element("th", groupName(group)))]);
  const rows = keys.map((key) => element("tr", [element("td", element("code", key)),
    ...groups.map((g) => element("td", key in data.groups[g].settings ? settingText(data.groups[g].settings[key]) : "–"))]));
  const inside = element("div", element("table", [head, ...rows]), { className: "wide" });
  const more = element("details", [element("summary", `Settings in which the first ${groups.length} differ`), inside]);
  more.open = at("difference").querySelector("details")?.open ?? false;
  return at("difference").replaceChildren(more);
}

// --- single runs

function runColumns() {
  const value = (name) => (run) => {
    const last = data.runs.last[name]?.[run] ?? null;
    return last === null ? null : last * factor(name);
  };
  const text = (name) => (run) => plain(value(name)(run));
  const group = (run) => data.groups[data.runs.group[run]];
  return [
    ["method", (r) => data.methods[group(r).method].label, (r) => data.methods[group(r).method].label],
    ["problem", (r) => data.problems[group(r).problem].label, (r) => data.problems[group(r).problem].label],
    ["seed", (r) => data.runs.seed[r], (r) => data.runs.seed[r]],
    ["run", (r) => data.runs.key[r], (r) => data.runs.key[r]],
    ["state", (r) => data.runs.state[r], (r) => data.runs.state[r]],
    [labelOf(metric()), value(metric()), text(metric())],
    ["steps", value("step"), text("step")],
    ["seconds", value("seconds"), text("seconds")],
  ];
}

function visibleRuns() {
  const groups = new Set(visible());
  const [seed, state, wanted] = [at("seed").value.trim(), at("state").value, at("setting").value.trim()];
  return data.runs.group.flatMap((group, run) => {
    const words = [data.runs.key[run], ...Object.entries(data.groups[group].settings).map(([k, v]) => `${k}=${settingText(v)}`)];
    const fits = groups.has(group) && (!seed || String(data.runs.seed[run]) === seed) && (!state || data.runs.state[run] === state)
      && (!wanted || words.some((word) => word.includes(wanted)));
    return fits ? [run] : [];
  });
}

function drawRuns() {
  if (!at("runs").open) return;
  const runs = visibleRuns();
  fill(at("runs").querySelector("table"), "runs", runs, runColumns(), (run) => boxFor(`draw ${data.runs.key[run]}`, picked.has(run), (on) => {
    if (on) picked.add(run); else picked.delete(run);
    loadRuns([data.runs.group[run]]);
    drawPlot();
  }));
  moreButton(at("rest"), "runs", runs.length);
  fitTables();
}

function drawTables() {
  drawMethods();
  drawMatrix();
  drawDifference();
  fitTables();
  drawRuns();
}

function startTables() {
  at("state").add(new Option("any", ""));
  for (const state of new Set(data.runs.state)) at("state").add(new Option(state, state));
  for (const id of ["seed", "state", "setting"]) at(id).addEventListener("input", drawRuns);
  at("runs").addEventListener("toggle", drawRuns);
  at("unpick").addEventListener("click", () => { picked.clear(); redraw(); });
  at("csv").addEventListener("click", () => {
    const columns = methodColumns();
    const rows = sorted(visible(), columns, orders.methods);
    saveTable([columns.map(([name]) => name), ...rows.map((row) => columns.map(([, , text]) => text(row)))], "methods.csv");
  });
  at("runscsv").addEventListener("click", () => {
    const names = Object.keys(data.metrics);
    const head = ["problem", "method", "seed", "run", "state", ...names];
    const rows = visibleRuns().map((run) => {
      const group = data.groups[data.runs.group[run]];
      return [data.problems[group.problem].label, data.methods[group.method].label, data.runs.seed[run], data.runs.key[run],
        data.runs.state[run], ...names.map((name) => data.runs.last[name][run])];
    });
    saveTable([head, ...rows], "runs.csv");
  });
}
