// Puts what the server tells now into the page, once a second; the focus and the scrolling stay
// where they were. A part that is as before stays, else a screen reader says it again.
const link = document.getElementById("link");

function refresh(part, now) {
  if (part.innerHTML === now.innerHTML) return;
  const focus = document.activeElement?.id;
  const scrolls = [...part.querySelectorAll(".scroll")].map(one => [one.scrollTop, one.scrollLeft]);
  part.replaceChildren(...now.childNodes);
  part.querySelectorAll(".scroll").forEach((one, i) => { [one.scrollTop, one.scrollLeft] = scrolls[i] ?? [0, 0]; });
  if (focus && part.contains(document.getElementById(focus))) document.getElementById(focus).focus();
}
async function poll() {
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) throw new Error(answer.statusText);
    const now = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll(".live")) refresh(part, now.getElementById(part.id));
    document.title = now.title;
    link.hidden = true;
  } catch {
    link.hidden = false;
    link.textContent = "Nothing answers any more, or the run is gone: this is the last that it said.";
  }
  setTimeout(poll, 1000);
}
poll();
