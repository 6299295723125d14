// Puts what the server tells of a run or a sweep into the page, once a second. All of it comes as
// HTML, with every text of a run folder escaped.
const at = id => document.getElementById(id);
let tag = "";

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;  // else a screen reader says it again
  element.hidden = text === "";
}
// Replace a part that has changed since; the focus and the scrolling stay where they were.
const last = {};
function replace(part) {
  const place = at(part.dataset.of), focus = document.activeElement?.id;
  if (last[place.id] === part.innerHTML) return;
  last[place.id] = part.innerHTML;
  place.hidden = !part.innerHTML.trim();
  const scrolls = [...place.querySelectorAll(".scroll")].map(one => [one.scrollTop, one.scrollLeft]);
  place.replaceChildren(...part.childNodes);
  place.querySelectorAll(".scroll").forEach((one, i) => { [one.scrollTop, one.scrollLeft] = scrolls[i] ?? [0, 0]; });
  if (focus && place.contains(at(focus))) at(focus).focus();
}
async function poll() {
  try {
    const answer = await fetch("now", { headers: tag ? { "If-None-Match": tag } : {} });
    if (answer.status === 200) {
      tag = answer.headers.get("etag");
      [...new DOMParser().parseFromString(await answer.text(), "text/html").body.children].forEach(replace);
      document.title = `${at("status").textContent}: ${document.querySelector("h1").textContent}`;
    }
    put(at("link"), answer.ok || answer.status === 304 ? "" : "The run is not there any more: this is the last it said.");
  } catch { put(at("link"), "The command that serves this page has ended, or does not answer: this is the last it said."); }
  setTimeout(poll, 1000);
}
poll();
