// Shows what the server tells of a run or a sweep, once a second. Tables come from the server, with
// every text of a run folder escaped; curves are drawn here.
const SVG = "http://www.w3.org/2000/svg", HEIGHT = 190;
const EDGE = { left: 62, right: 118, top: 12, bottom: 26 };
const at = id => document.getElementById(id);
let look = null, tag = "", chosen = null;  // chosen: index of a round; null: the last one

function bytes(count) {
  const units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (Math.abs(count) >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${unit ? count.toFixed(1) : count} ${units[unit]}`;
}
const words = { percent: value => `${value.toFixed(2)} %`, number: value => String(Number(value.toPrecision(4))), bytes };
const say = (value, kind) => (value === null ? "–" : words[kind](value));
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;  // else a screen reader says it again
  element.hidden = text === "";
}

// --- tables ---
// Replace a part that has changed since; the focus and the scrolling stay where they were.
const last = {};
function replace(part) {
  const place = at(part.dataset.of), focus = document.activeElement?.id;
  if (last[place.id] === part.innerHTML) return;
  last[place.id] = part.innerHTML;
  const scrolls = [...place.querySelectorAll(".scroll")].map(one => [one.scrollTop, one.scrollLeft]);
  place.replaceChildren(...part.childNodes);
  place.hidden = !place.children.length;
  place.querySelectorAll(".scroll").forEach((one, i) => { [one.scrollTop, one.scrollLeft] = scrolls[i] ?? [0, 0]; });
  if (focus && place.contains(at(focus))) at(focus).focus();
}

// --- curves ---
function draw_one(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text ?? "";
  return made;
}
function steps(low, high, most) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(k => k * power >= rough) * power, found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
  return found;
}
function draw(svg, curve, row) {
  const rows = look.rounds, width = Math.max(280, svg.clientWidth || 600), kind = look.columns[curve.lines[0][1]][1];
  const values = curve.lines.flatMap(([, column]) => rows.map(one => one[column])).filter(value => value !== null);
  let [low, high] = values.length ? [kind === "bytes" ? 0 : Math.min(...values), Math.max(...values)] : [0, 1];
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  [low, high] = [kind === "bytes" ? 0 : low - pad, high + pad];
  const first = rows[0][0], end = Math.max(rows.at(-1)[0], first + 1), right = width - EDGE.right, bottom = HEIGHT - EDGE.bottom;
  const x = round => EDGE.left + (round - first) / (end - first) * (right - EDGE.left);
  const y = value => bottom - (value - low) / (high - low) * (bottom - EDGE.top);
  const parts = steps(low, high, 4).flatMap(value => [
    draw_one("line", { x1: EDGE.left, x2: right, y1: y(value), y2: y(value), class: "rule" }),
    draw_one("text", { x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end" },
      kind === "bytes" ? bytes(value) : `${Number(value.toPrecision(6))}${kind === "percent" ? " %" : ""}`),
  ]);
  for (const round of steps(first, end, width < 500 ? 4 : 8).filter(Number.isInteger)) {
    parts.push(draw_one("text", { x: x(round), y: HEIGHT - 8, "text-anchor": "middle" }, round));
  }
  parts.push(draw_one("line", { x1: x(row[0]), x2: x(row[0]), y1: EDGE.top, y2: bottom, class: "mark" }));
  const names = [];
  curve.lines.forEach(([title, column], i) => {
    const path = rows.map((one, k) => (one[column] === null ? "" :
      `${k && rows[k - 1][column] !== null ? "L" : "M"}${x(one[0]).toFixed(1)} ${y(one[column]).toFixed(1)}`)).join("");
    parts.push(draw_one("path", { d: path, class: `curve s${i}` }));
    const newest = rows.findLast(one => one[column] !== null);
    if (newest) names.push({ i, title, x: x(newest[0]), y: y(newest[column]) });
  });
  let above = -Infinity;
  for (const name of names.sort((a, b) => a.y - b.y)) above = name.at = Math.max(name.y, above + 14);
  for (const name of names) {
    parts.push(draw_one("circle", { cx: name.x, cy: name.y, r: 3, class: `d${name.i}` }));
    const over = Math.max(0, above - bottom);
    parts.push(draw_one("text", { x: right + 10, y: name.at - over + 4, class: `n${name.i}` }, name.title));
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
  const number = Math.min(chosen ?? Infinity, look.rounds.length - 1), row = look.rounds[number];
  range.value = number;
  put(at("cursor").querySelector("output"), String(row[0]));
  range.setAttribute("aria-valuetext", `round ${row[0]}: ${look.curves.map(curve => read(curve, row)).join("; ")}`);
  look.curves.forEach((curve, i) => draw(at("curves").children[i].querySelector("svg"), curve, row));
}
function choose(number) { chosen = number >= look.rounds.length - 1 ? null : Math.max(0, number); draw_all(); }
function figure(curve) {
  const made = at("figure").content.firstElementChild.cloneNode(true), svg = made.querySelector("svg");
  made.querySelector("h3").textContent = curve.title;
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), share = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
    choose(Math.round(share * (look.rounds.length - 1)));
  });
  svg.addEventListener("pointerleave", () => choose(Infinity));
  return made;
}

// --- all of it ---
function show(told) {
  look = told;
  document.title = `${look.status}: ${look.name}`;
  for (const id of ["status", "title", "says"]) put(at(id), look[id]);
  [...new DOMParser().parseFromString(look.html, "text/html").body.children].forEach(replace);
  if (at("curves").children.length !== look.curves.length) at("curves").replaceChildren(...look.curves.map(figure));
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
