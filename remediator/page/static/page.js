"use strict";
// Keeps a page up to date and adds keys. Everything works without it, after a reload.

// A token in the address's fragment signs in at once: a fragment is sent to no server.
const login = document.getElementById("login");
if (login && location.hash.length > 1) {
  const token = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", location.pathname + location.search);
  document.getElementById("token").value = token;
  login.submit();
}

const live = document.getElementById("live");
const say = (text, good) => { if (live && live.textContent !== text) { live.textContent = text; live.classList.toggle("good", good); } };

// refresh fetches the page again and puts its changed parts in place. What a person is typing in stays.
let running = false, again = false;
async function refresh() {
  if (running) { again = true; return; }
  running = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") { location.reload(); return; }
    if (!(answer.headers.get("Content-Type") || "").startsWith("text/html")) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) replace(part, fresh.getElementById(part.id));
  } catch (e) {
    say("not connected", false);
  } finally {
    running = false;
    if (again) { again = false; setTimeout(refresh, 500); }
  }
}

function replace(part, fresh) {
  if (!fresh || part.innerHTML === fresh.innerHTML) return;
  const at = document.activeElement;
  const inside = part.contains(at);
  if (inside && at.matches("input, textarea, select") && at.value !== "") return; // a person is typing
  const open = [...part.querySelectorAll("details")].map((d) => d.open);
  const mark = inside ? at.getAttribute("href") || at.id : "";
  part.replaceChildren(...fresh.childNodes);
  [...part.querySelectorAll("details")].forEach((d, k) => { if (open[k]) d.open = true; });
  if (mark) {
    const back = [...part.querySelectorAll("a[href], [id]")].find((e) => e.getAttribute("href") === mark || e.id === mark);
    if (back) back.focus({ preventScroll: true });
  }
}

function listen(address) {
  const mine = location.pathname.startsWith("/incidents/") ? decodeURIComponent(location.pathname.slice(11)) : "";
  const source = new EventSource(address);
  let timer = 0, stood = "";
  const soon = (wait) => { if (!timer) timer = setTimeout(() => { timer = 0; refresh(); }, wait); };
  source.addEventListener("open", () => say("live", true));
  source.addEventListener("error", () => say(source.readyState === EventSource.CLOSED ? "not connected" : "reconnecting", false));
  source.addEventListener("change", (e) => {
    const news = JSON.parse(e.data);
    const parent = document.querySelector("#kin");
    if (!mine || news.all || parent || news.changed.includes(mine)) soon(mine ? 100 : 700);
  });
  source.addEventListener("state", (e) => {
    const s = JSON.parse(e.data);
    say(s.store ? "live" : "NATS is away", s.store);
    const stands = [s.store, s.ready, s.paused].join("|");
    if (stood && stood !== stands) soon(100);
    stood = stands;
    if (document.querySelector("[data-part] .p-now") || location.pathname === "/fleet") soon(100); // what runs gets longer
  });
}
const stream = document.body.dataset.live;
if (stream) listen(stream);

// Keys. None of them changes anything but what is looked at.
const places = { i: "/", f: "/fleet", o: "/observed", r: "/runbooks/" };
let going = false;
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.matches("input, textarea, select")) return;
  if (going) {
    going = false;
    if (places[e.key]) { location.href = places[e.key]; return; }
  }
  const rows = [...document.querySelectorAll("a.go")];
  const at = rows.indexOf(document.activeElement);
  switch (e.key) {
    case "/": { const q = document.getElementById("q"); if (q) { q.focus(); e.preventDefault(); } break; }
    case "j": if (rows.length) rows[Math.min(at + 1, rows.length - 1)].focus(); break;
    case "k": if (rows.length) rows[Math.max(at - 1, 0)].focus(); break;
    case "g": going = true; setTimeout(() => { going = false; }, 1000); break;
  }
});
