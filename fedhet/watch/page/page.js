// Draws what the server tells of a run or a sweep. Everything that comes from a run folder is put
// into the page as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const NEWEST = 200; // rows of the table of rounds
const HEIGHT = 190; // of a curve, in pixels; its width is the page's
const EDGE = { left: 62, right: 118, top: 12, bottom: 26 };
const root = document.body.dataset.root;
const at = id => document.getElementById(id);

// --- words ---------------------------------------------------------------------------------------

function bytes(count) {
  const units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (Math.abs(count) >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${unit ? count.toFixed(1) : count} ${units[unit]}`;
}

const words = {
  text: value => value,
  count: value => value.toLocaleString("en"),
  percent: value => `${value.toFixed(2)} %`,
  number: value => String(Number(value.toPrecision(4))),
  bytes,
};

const say = (value, kind) => (value === null || value === "" ? "–" : words[kind](value));

function make(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text; // else a screen reader says it again
  element.hidden = text === "";
}

// --- tables --------------------------------------------------------------------------------------

function cell(value, kind) {
  const text = say(value, kind);
  const shape = kind === "text" ? (text.length > 40 ? "text long" : "text") : "";
  return make("td", shape ? { class: shape } : {}, text);
}

function region(title) {
  const table = make("table", {}, make("thead"), make("tbody"));
  return [make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, table), table];
}

// A table that can be sorted, and stays sorted when its rows change.
class Sortable {
  constructor(place, given) {
    this.title = make("h2");
    this.note = make("p", { class: "note" });
    const [scroll, table] = region(given.title);
    this.table = table;
    this.heads = given.columns.map((column, number) => {
      const button = make("button", { type: "button" }, column.title);
      const head = make("th", { scope: "col", class: column.kind === "text" ? "text" : "" }, button);
      button.addEventListener("click", () => this.press(number));
      return head;
    });
    table.tHead.append(make("tr", {}, ...this.heads));
    this.by = null;
    place.append(make("section", { id: given.name }, this.title, this.note, scroll));
  }

  press(number) {
    const first = this.given.columns[number].kind === "text" ? "ascending" : "descending";
    const other = first === "ascending" ? "descending" : "ascending";
    const same = this.by?.number === number;
    this.by = same && this.by.way === other ? null : { number, way: same ? other : first };
    this.heads.forEach((head, i) => {
      if (this.by?.number === i) head.setAttribute("aria-sort", this.by.way);
      else head.removeAttribute("aria-sort");
    });
    this.show(this.given);
  }

  show(given) {
    this.given = given;
    const count = given.rows.length + given.more;
    put(this.title, `${given.title} (${count.toLocaleString("en")})`);
    put(this.note, given.more ? `${given.more.toLocaleString("en")} more are not shown` : given.note);
    const rows = this.by ? sorted(given.rows, this.by) : given.rows;
    const kinds = given.columns.map(column => column.kind);
    this.table.tBodies[0].replaceChildren(
      ...rows.map(row => make("tr", {}, ...row.map((value, i) => cell(value, kinds[i])))),
    );
  }
}

function sorted(rows, by) {
  const sign = by.way === "ascending" ? 1 : -1;
  return [...rows].sort((a, b) => {
    const [x, y] = [a[by.number], b[by.number]];
    if (x === null || y === null) return (x === null) - (y === null); // what is absent comes last
    return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
  });
}

// A sweep's cells. What has not changed stays the same element, so that no link loses the focus.
class Squares {
  constructor(place, given) {
    const [scroll, table] = region(given.title);
    this.shape = shapeOf(given);
    this.cells = given.rows.map(([, cells]) => cells.map(() => ({ said: "", td: make("td") })));
    const heads = ["", ...given.columns].map(name => make("th", { scope: "col", class: "text" }, name));
    table.tHead.append(make("tr", {}, ...heads));
    given.rows.forEach(([name], i) => {
      const head = make("th", { scope: "row" }, name);
      table.tBodies[0].append(make("tr", {}, head, ...this.cells[i].map(one => one.td)));
    });
    this.section = make("section", {}, make("h2", {}, given.title), scroll);
    place.append(this.section);
  }

  show(given) {
    given.rows.forEach(([, cells], i) => cells.forEach((one, j) => {
      const [said, kept] = [JSON.stringify(one), this.cells[i][j]];
      if (one === null || said === kept.said) return;
      kept.said = said;
      kept.td.className = `text ${MARKED[one.state] ?? ""}`;
      const there = { href: `${root}run/${encodeURIComponent(one.run)}/` };
      kept.td.replaceChildren(one.run ? make("a", there, one.text) : one.text);
    }));
  }
}

const MARKED = { running: "running", failed: "failed", diverged: "failed", "broken off": "failed" };
const shapeOf = given => JSON.stringify([given.columns, given.rows.map(([name]) => name)]);

// --- rounds --------------------------------------------------------------------------------------

const course = { rows: [], columns: [], curves: [], of: 0, follows: true };
const range = at("cursor").querySelector("input");

function steps(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(k => k * power >= rough) * power;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
  return found;
}

function tick(value, kind) {
  return kind === "bytes" ? bytes(value) : `${Number(value.toPrecision(6))}${kind === "percent" ? " %" : ""}`;
}

// Where on the picture a round and a value are, in pixels.
function scales(curve, width) {
  const values = curve.lines.flatMap(line => course.rows.map(row => row[line.column])).filter(v => v !== null);
  const kind = course.columns[curve.lines[0].column].kind;
  let [low, high] = kind === "bytes" || !values.length ? [0, 1] : [Infinity, -Infinity];
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  if (kind !== "bytes") low -= pad;
  high += pad;
  const [first, last] = [course.rows[0][0], Math.max(course.rows.at(-1)[0], course.rows[0][0] + 1)];
  return {
    kind, low, high, first, last,
    x: round => EDGE.left + (round - first) / (last - first) * (width - EDGE.left - EDGE.right),
    y: value => HEIGHT - EDGE.bottom - (value - low) / (high - low) * (HEIGHT - EDGE.top - EDGE.bottom),
  };
}

function path(line, scale) {
  let pen = "M";
  const parts = [];
  for (const row of course.rows) {
    const value = row[line.column];
    if (value === null) { pen = "M"; continue; }
    parts.push(`${pen}${scale.x(row[0]).toFixed(1)} ${scale.y(value).toFixed(1)}`);
    pen = "L";
  }
  return parts.join("");
}

// Names at the ends of lines, moved apart where they would lie on each other.
function names(curve, scale, width) {
  const found = curve.lines.flatMap((line, number) => {
    const row = course.rows.findLast(one => one[line.column] !== null);
    return row ? [{ number, title: line.title, row, y: scale.y(row[line.column]) }] : [];
  }).sort((a, b) => a.y - b.y);
  let above = -Infinity;
  for (const one of found) { one.at = Math.max(one.y, above + 14); above = one.at; }
  const over = Math.max(0, above - (HEIGHT - EDGE.bottom));
  return found.flatMap(one => [
    make("svg:circle", { cx: scale.x(one.row[0]), cy: one.y, r: 3, class: `d${one.number}` }),
    make("svg:text", { x: width - EDGE.right + 10, y: one.at - over + 4, class: `n${one.number}` }, one.title),
  ]);
}

function draw(curve, chosen) {
  const { svg, caption, given } = curve;
  const width = Math.max(280, svg.clientWidth || 600);
  const scale = scales(given, width);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const parts = [];
  for (const value of steps(scale.low, scale.high, 4)) {
    const y = scale.y(value);
    parts.push(make("svg:line", { x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y, class: "rule" }));
    parts.push(make("svg:text", { x: EDGE.left - 6, y: y + 4, "text-anchor": "end" }, tick(value, scale.kind)));
  }
  for (const round of steps(scale.first, scale.last, width < 500 ? 4 : 8)) {
    if (Number.isInteger(round)) {
      parts.push(make("svg:text", { x: scale.x(round), y: HEIGHT - 8, "text-anchor": "middle" }, String(round)));
    }
  }
  const mark = scale.x(chosen[0]);
  parts.push(make("svg:line", { x1: mark, x2: mark, y1: EDGE.top, y2: HEIGHT - EDGE.bottom, class: "mark" }));
  given.lines.forEach((line, i) => parts.push(make("svg:path", { d: path(line, scale), class: `curve s${i}` })));
  svg.replaceChildren(...parts, ...names(given, scale, width));
  put(caption, read(given, chosen));
  svg.setAttribute("aria-label", `${given.title} over ${course.of} rounds; round ${chosen[0]}: ${read(given, chosen)}`);
}

const read = (given, row) => given.lines
  .map(line => `${line.title} ${say(row[line.column], course.columns[line.column].kind)}`).join(", ");

function drawAll() {
  if (!course.rows.length || at("course").hidden) return;
  if (course.follows) range.value = range.max;
  const row = course.rows[Math.min(Number(range.value), course.rows.length - 1)];
  put(at("cursor").querySelector("output"), String(row[0]));
  range.setAttribute("aria-valuetext", `round ${row[0]}: ${course.curves.map(one => read(one.given, row)).join("; ")}`);
  for (const curve of course.curves) draw(curve, row);
}

function choose(number) {
  range.value = number;
  course.follows = Number(range.value) === Number(range.max);
  drawAll();
}

function begin(state) {
  course.columns = state.columns;
  course.curves = state.curves.map(given => {
    const svg = make("svg:svg", { role: "img", preserveAspectRatio: "none" });
    const caption = make("figcaption");
    at("curves").append(make("figure", {}, make("h3", {}, given.title), svg, caption));
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect();
      const share = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
      choose(Math.round(share * (course.rows.length - 1)));
    });
    svg.addEventListener("pointerleave", () => choose(course.rows.length - 1));
    return { svg, caption, given };
  });
  const [scroll, table] = region("Rounds, the newest first");
  const heads = state.columns.map(column => make("th", { scope: "col" }, column.title));
  table.tHead.append(make("tr", {}, ...heads));
  at("rounds").append(scroll);
  course.body = table.tBodies[0];
  new ResizeObserver(drawAll).observe(at("curves"));
}

function showRounds(told) {
  course.rows = told.anew ? told.rows : course.rows.concat(told.rows);
  course.of = told.of;
  at("course").hidden = !course.rows.length;
  range.max = Math.max(0, course.rows.length - 1);
  const kinds = course.columns.map(column => column.kind);
  const newest = course.rows.slice(-NEWEST).reverse();
  course.body.replaceChildren(
    ...newest.map(row => make("tr", {}, ...row.map((value, i) => cell(value, kinds[i])))),
  );
  const left = course.of - newest.length;
  put(at("thinned"), left ? `The table has ${newest.length} of ${course.of} rounds, the curves ${course.rows.length}.` : "");
  drawAll();
}

// --- all of it -----------------------------------------------------------------------------------

const tables = new Map();
const grids = new Map();

function showGrid(given) {
  const before = grids.get(given.title);
  if (before?.shape !== shapeOf(given)) {
    before?.section.remove();
    grids.set(given.title, new Squares(at("grids"), given));
  }
  grids.get(given.title).show(given);
}

function showState(state) {
  document.title = `${state.status}: ${state.name}`;
  put(at("status"), state.status);
  put(at("title"), state.title);
  put(at("says"), state.says);
  at("damage").hidden = !state.damage.length;
  at("damage").replaceChildren(...state.damage.map(text => make("li", {}, text)));
  at("facts").replaceChildren(...state.facts.map(
    ([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)),
  ));
  if (state.columns.length && !course.columns.length) begin(state);
  state.grids.forEach(showGrid);
  for (const table of state.tables) {
    if (!tables.has(table.name)) tables.set(table.name, new Sortable(at("tables"), table));
    tables.get(table.name).show(table);
  }
}

range.addEventListener("input", () => choose(Number(range.value)));
const source = new EventSource("events");
source.addEventListener("state", event => { put(at("link"), ""); showState(JSON.parse(event.data)); });
source.addEventListener("rounds", event => showRounds(JSON.parse(event.data)));
source.addEventListener("error", () => put(at("link"), "The command that serves this page has ended, or does not answer: this is the last it said."));
