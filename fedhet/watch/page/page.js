// Draws what the server tells of a run or a sweep, once a second. Everything that comes from a run
// folder is put into the page as text, never as markup.
const SVG = "http://www.w3.org/2000/svg", NEWEST = 200, HEIGHT = 190;
const EDGE = { left: 62, right: 118, top: 12, bottom: 26 };
const root = document.body.dataset.root;
const at = id => document.getElementById(id);
const sorts = {};  // by table: column and direction
let look = null, tag = "", chosen = null;  // chosen: index of a round; null: the last one

function bytes(count) {
  const units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (Math.abs(count) >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${unit ? count.toFixed(1) : count} ${units[unit]}`;
}
const words = {
  text: String, count: value => value.toLocaleString("en"), percent: value => `${value.toFixed(2)} %`,
  number: value => String(Number(value.toPrecision(4))), bytes,
};
const say = (value, kind) => (value === null || value === "" ? "–" : words[kind](value));
function make(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;  // else a screen reader says it again
  element.hidden = text === "";
}

// --- tables ---
function cell(value, kind) {
  const text = say(value, kind);
  return make("td", { class: kind === "text" ? (text.length > 40 ? "text long" : "text") : "" }, text);
}
function region(title, head, rows) {
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, table);
}
function show_table(given) {
  const by = sorts[given.name], rows = [...given.rows];
  if (by) rows.sort((a, b) => {
    const [x, y] = [a[by.column], b[by.column]];
    if (x === null || y === null) return (x === null) - (y === null);  // what is absent comes last
    return (by.up ? 1 : -1) * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
  });
  const heads = given.columns.map(([title, kind], column) => {
    const button = make("button", { type: "button", id: `${given.name}-${column}` }, title);
    const head = make("th", { scope: "col", class: kind === "text" ? "text" : "" }, button);
    if (by?.column === column) head.setAttribute("aria-sort", by.up ? "ascending" : "descending");
    button.addEventListener("click", () => {
      sorts[given.name] = { column, up: by?.column === column ? !by.up : kind === "text" };
      show(look);
    });
    return head;
  });
  const body = rows.map(row => make("tr", {}, ...row.map((value, i) => cell(value, given.columns[i][1]))));
  const note = given.more ? `${given.more.toLocaleString("en")} more are not shown` : given.note;
  const title = `${given.title} (${(given.rows.length + given.more).toLocaleString("en")})`;
  return make("section", {}, make("h2", {}, title), make("p", { class: "note" }, note), region(given.title, heads, body));
}
const MARKED = { running: "running", failed: "failed", diverged: "failed", "broken off": "failed" };
function show_grid(given) {
  const heads = ["", ...given.columns].map(name => make("th", { scope: "col", class: "text" }, name));
  const rows = given.rows.map(([name, cells]) => make("tr", {}, make("th", { scope: "row" }, name), ...cells.map(one => {
    if (one === null) return make("td");
    const link = { href: `${root}run/${encodeURIComponent(one.run)}/`, id: `run-${one.run}` };
    return make("td", { class: `text ${MARKED[one.state] ?? ""}` }, one.run ? make("a", link, one.text) : one.text);
  })));
  return make("section", {}, make("h2", {}, given.title), region(given.title, heads, rows));
}
// Replace what has changed since; the focus and the scrolling stay where they were.
function replace(place, sections) {
  const focus = document.activeElement?.id, scrolls = [...place.querySelectorAll(".scroll")].map(one => [one.scrollTop, one.scrollLeft]);
  place.replaceChildren(...sections);
  place.querySelectorAll(".scroll").forEach((one, i) => { [one.scrollTop, one.scrollLeft] = scrolls[i] ?? [0, 0]; });
  if (focus && place.contains(at(focus))) at(focus).focus();
}

// --- curves ---
function steps(low, high, most) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(k => k * power >= rough) * power, found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
  return found;
}
function draw(svg, curve, row) {
  const rows = look.rounds, width = Math.max(280, svg.clientWidth || 600), kind = look.columns[curve.lines[0][1]][1];
  const values = curve.lines.flatMap(([, column]) => rows.map(one => one[column])).filter(value => value !== null);
  let low = kind === "bytes" ? 0 : Math.min(...values, Infinity), high = Math.max(...values, -Infinity);
  if (!values.length) [low, high] = [0, 1];
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  [low, high] = [kind === "bytes" ? 0 : low - pad, high + pad];
  const first = rows[0][0], last = Math.max(rows.at(-1)[0], first + 1), right = width - EDGE.right, bottom = HEIGHT - EDGE.bottom;
  const x = round => EDGE.left + (round - first) / (last - first) * (right - EDGE.left);
  const y = value => bottom - (value - low) / (high - low) * (bottom - EDGE.top);
  const parts = steps(low, high, 4).flatMap(value => [
    make("svg:line", { x1: EDGE.left, x2: right, y1: y(value), y2: y(value), class: "rule" }),
    make("svg:text", { x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end" },
      kind === "bytes" ? bytes(value) : `${Number(value.toPrecision(6))}${kind === "percent" ? " %" : ""}`),
  ]);
  for (const round of steps(first, last, width < 500 ? 4 : 8).filter(Number.isInteger)) {
    parts.push(make("svg:text", { x: x(round), y: HEIGHT - 8, "text-anchor": "middle" }, String(round)));
  }
  parts.push(make("svg:line", { x1: x(row[0]), x2: x(row[0]), y1: EDGE.top, y2: bottom, class: "mark" }));
  const ends = [];
  curve.lines.forEach(([title, column], i) => {
    let pen = "M";
    const path = rows.map(one => {
      if (one[column] === null) { pen = "M"; return ""; }
      const part = `${pen}${x(one[0]).toFixed(1)} ${y(one[column]).toFixed(1)}`;
      pen = "L";
      return part;
    }).join("");
    parts.push(make("svg:path", { d: path, class: `curve s${i}` }));
    const end = rows.findLast(one => one[column] !== null);
    if (end) ends.push({ i, title, x: x(end[0]), y: y(end[column]) });
  });
  let above = -Infinity;
  for (const end of ends.sort((a, b) => a.y - b.y)) { end.at = Math.max(end.y, above + 14); above = end.at; }
  for (const end of ends) {
    parts.push(make("svg:circle", { cx: end.x, cy: end.y, r: 3, class: `d${end.i}` }));
    const over = Math.max(0, above - bottom);
    parts.push(make("svg:text", { x: right + 10, y: end.at - over + 4, class: `n${end.i}` }, end.title));
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("aria-label", `${curve.title} over ${look.of} rounds; round ${row[0]}: ${read(curve, row)}`);
  svg.replaceChildren(...parts);
  put(svg.nextSibling, read(curve, row));
}
const read = (curve, row) => curve.lines.map(([title, column]) => `${title} ${say(row[column], look.columns[column][1])}`).join(", ");
const range = at("cursor").querySelector("input");
function draw_all() {
  at("course").hidden = !look?.rounds.length;
  if (at("course").hidden) return;
  range.max = look.rounds.length - 1;
  const number = chosen === null ? look.rounds.length - 1 : Math.min(chosen, look.rounds.length - 1), row = look.rounds[number];
  range.value = number;
  put(at("cursor").querySelector("output"), String(row[0]));
  range.setAttribute("aria-valuetext", `round ${row[0]}: ${look.curves.map(curve => read(curve, row)).join("; ")}`);
  look.curves.forEach((curve, i) => draw(at("curves").children[i].querySelector("svg"), curve, row));
}
function choose(number) { chosen = number >= look.rounds.length - 1 ? null : Math.max(0, number); draw_all(); }
function figure(curve) {
  const svg = make("svg:svg", { role: "img", preserveAspectRatio: "none" });
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), share = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
    choose(Math.round(share * (look.rounds.length - 1)));
  });
  svg.addEventListener("pointerleave", () => choose(Infinity));
  return make("figure", {}, make("h3", {}, curve.title), svg, make("figcaption"));
}

// --- all of it ---
function show(told) {
  look = told;
  document.title = `${look.status}: ${look.name}`;
  for (const id of ["status", "title", "says"]) put(at(id), look[id]);
  at("damage").hidden = !look.damage.length;
  at("damage").replaceChildren(...look.damage.map(text => make("li", {}, text)));
  at("facts").replaceChildren(...look.facts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text))));
  replace(at("grids"), look.grids.map(show_grid));
  replace(at("tables"), look.tables.map(show_table));
  if (at("curves").children.length !== look.curves.length) at("curves").replaceChildren(...look.curves.map(figure));
  const columns = look.columns.flatMap(([title], i) => (title ? [i] : []));
  const heads = columns.map(i => make("th", { scope: "col" }, look.columns[i][0]));
  const newest = look.rounds.slice(-NEWEST).reverse();
  const rows = newest.map(row => make("tr", {}, ...columns.map(i => cell(row[i], look.columns[i][1]))));
  replace(at("rounds"), [region("Rounds, the newest first", heads, rows)]);
  put(at("thinned"), look.of > newest.length ? `The table has ${newest.length} of ${look.of} rounds, the curves ${look.rounds.length}.` : "");
  draw_all();
}
async function poll() {
  try {
    const answer = await fetch("data", { headers: tag ? { "If-None-Match": tag } : {} });
    if (answer.status === 200) { tag = answer.headers.get("etag"); show(await answer.json()); }
    put(at("link"), answer.ok || answer.status === 304 ? "" : "The run is not there any more: this is the last it said.");
  } catch { put(at("link"), "The command that serves this page has ended, or does not answer: this is the last it said."); }
  setTimeout(poll, 1000);
}
range.addEventListener("input", () => choose(Number(range.value)));
new ResizeObserver(draw_all).observe(at("curves"));
poll();
