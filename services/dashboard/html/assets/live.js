// Follows a run: shows what happens now, and takes the page anew when a step has finished.
"use strict";

const place = document.querySelector("[data-events]");

async function refresh() {
  const reply = await fetch(location.href);
  if (!reply.ok) return;
  const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
  const open = [...document.querySelectorAll("details")].map((part) => part.open);
  document.querySelector("main").replaceWith(fresh.querySelector("main"));
  document.querySelectorAll("details").forEach((part, n) => { part.open = open[n] ?? false; });
}

function say(text) {
  const now = document.getElementById("now");
  if (now) now.textContent = text; // text of models and people is never taken as HTML
}

if (place) {
  const source = new EventSource(place.dataset.events);
  let waiting = 0;
  const soon = () => { clearTimeout(waiting); waiting = setTimeout(refresh, 400); };
  const on = (kind, work) => source.addEventListener(kind, (message) => work(JSON.parse(message.data)));
  on("group", (event) => say(`step ${event.step}: ${event.data.done} of ${event.data.total} groups`));
  for (const kind of ["step", "evaluation"]) on(kind, soon);
  for (const kind of ["proposal", "accepted", "rejected"]) on(kind, (event) => say(`a rewrite: ${event.kind}`));
  on("run", (event) => {
    soon();
    if (["finished", "failed", "stopped"].includes(event.data.status)) source.close();
  });
}
