"use strict";
// Reads a board, asks Prometheus and hands the results to the panels.

const $ = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);
let settings, board, drawing_number = 0;
const values = {};

const theme = (dark) => { document.documentElement.classList.toggle("dark", dark); };
theme(asked.get("theme") ? asked.get("theme") === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

const ask = async (path, parameters) => {
  const res = await fetch("api/" + path + "?" + new URLSearchParams(parameters));
  const text = await res.text();
  let body;
  try { body = JSON.parse(text); } catch { throw new Error(text || res.statusText); }
  if (body.status !== "success") throw new Error(body.error || res.statusText);
  return body.data.result;
};

const filled = (expr, rate) => expr.replaceAll("$__rate_interval", rate + "s").replace(/\$(\w+)/g, (all, name) => (name in values ? values[name].map((v) => (v === "$__all" ? ".*" : v.replace(/[\\.^$*+?()[\]{}|]/g, "\\\\$&"))).join("|") : all));

// loadVariable fills one variable's list from the label's values; those before it are chosen already.
const loadVariable = async (v) => {
  const m = /^label_values\((.*), (\w+)\)$/.exec(v.definition), end = Date.now() / 1000;
  const results = await ask("query", { query: `group by (${m[2]}) (last_over_time(${filled(m[1], 240)}[1h]))`, time: end });
  return results.map((r) => r.metric[m[2]] || "").filter(Boolean).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
};

const variables = async () => {
  $("variables").replaceChildren();
  for (const key of Object.keys(values)) delete values[key];
  for (const v of board.templating.list) {
    if (v.type === "constant") { values[v.name] = [v.query]; continue; }
    if (v.type !== "query") continue;
    const list = await loadVariable(v), want = asked.getAll("var-" + v.name).filter((x) => x && x !== "$__all" && list.includes(x));
    values[v.name] = want.length ? want : [v.includeAll ? "$__all" : list[0] ?? ""];
    const select = element("select", { "aria-label": v.label });
    if (v.includeAll) select.append(element("option", { value: "$__all" }, v.label + ": all"));
    for (const x of list) select.append(element("option", { value: x }, v.label + ": " + x));
    select.value = values[v.name][0];
    select.onchange = () => { asked.delete("var-" + v.name); asked.append("var-" + v.name, select.value); start(); };
    $("variables").append(select);
  }
};

// link gives the first data link of a value as an address of this page or of a runbook.
const link = (panel, labels) => {
  const found = (panel.fieldConfig.defaults.links || []).map((l) => l.url).find((u) => u.startsWith("/d/") || u.startsWith("${runbooks"));
  if (!found) return null;
  const fill = (u) => u.replace(/\$\{__(?:data\.fields|field\.labels)\.(\w+)\}/g, (_, l) => encodeURIComponent(labels[l] ?? ""));
  if (found.startsWith("${runbooks")) return fill(found.replace("${runbooks:raw}", values.runbooks[0]));
  const [, uid, rest] = /^\/d\/([\w-]+)\??(.*)$/.exec(found);
  const kept = ["cluster", "namespace"].flatMap((n) => (values[n] || []).map((v) => `var-${n}=${encodeURIComponent(v)}`)).filter((x) => !rest.includes(x.split("=")[0] + "="));
  const own = fill(rest).split("&").filter((x) => x.startsWith("var-"));
  return "?" + ["board=" + uid, "theme=" + (isDark() ? "dark" : "light"), ...kept, ...own].join("&");
};

const runbook = (panel) => (panel.links || []).map((l) => element("a", { href: l.url.replace("${runbooks:raw}", values.runbooks[0]), title: l.title, rel: "noreferrer" }, "runbook"));

const drawPanel = async (panel, box, at) => {
  const body = box.querySelector(".body"), instant = panel.targets[0]?.instant;
  try {
    const results = await Promise.all(panel.targets.map(async (q) => ({ legend: q.legendFormat,
      series: instant ? await ask("query", { query: filled(q.expr, at.rate), time: at.to }) : await ask("query_range", { query: filled(q.expr, at.rate), start: at.from, end: at.to, step: at.step }) })));
    if (at.number !== drawing_number) return;
    if (results.every((r) => r.series.length === 0)) body.append(element("div", { class: "note" }, panel.fieldConfig.defaults.noValue || "no data"));
    else kinds[panel.type](panel, results, body, at);
  } catch (e) {
    body.append(element("div", { class: "note error" }, e.message));
  }
};

const annotations = async (at) => {
  const found = await Promise.all(board.annotations.list.map(async (a) => (await ask("query_range", { query: filled(a.expr, at.rate), start: at.from, end: at.to, step: at.step }).catch(() => []))
    .map((s) => ({ t: s.values[0][0], color: a.iconColor }))));
  return found.flat();
};

const start = async () => {
  const number = ++drawing_number;
  asked.set("board", $("board").value);
  asked.set("theme", isDark() ? "dark" : "light");
  history.replaceState(null, "", "?" + asked);
  charts.splice(0).forEach((c) => c.destroy());
  $("panels").replaceChildren();
  board = await (await fetch("api/boards/" + $("board").value)).json();
  document.title = board.title;
  $("about").textContent = board.description;
  try { await variables(); } catch (e) { $("panels").append(element("p", { class: "error", style: "grid-column:1/-1" }, e.message)); return; }
  const span = Number($("range").value), step = Math.max(60, Math.ceil(span / 240 / 60) * 60), to = Math.floor(Date.now() / 1000 / step) * step;
  const at = { from: to - span, to, step, rate: Math.max(settings.rate_interval_s, step + settings.rate_interval_s / 4), link, number, annotations: [] };
  at.annotations = await annotations(at);
  if (number !== drawing_number) return;
  const drawings = [];
  for (const p of board.panels) {
    const g = p.gridPos, place = `grid-column:${g.x + 1} / span ${g.w};grid-row:${g.y + 1} / span ${g.h}`;
    if (p.type === "row") { $("panels").append(element("h2", { class: "row", style: place }, p.title)); continue; }
    const about = element("details", {}, element("summary", { "aria-label": "About " + p.title }, "i"), element("p", {}, p.description));
    const box = element("section", { class: "panel" + (p.type === "stat" ? " stat-panel" : ""), style: place, "aria-label": p.title },
      element("h3", {}, element("span", { title: p.title }, p.title), about, ...runbook(p).slice(0, 1)), element("div", { class: "body" }));
    $("panels").append(box);
    drawings.push(drawPanel(p, box, at));
  }
  await Promise.all(drawings);
  document.body.dataset.drawn = board.uid;
};

const ranges = { "now-1h": 3600, "now-6h": 21600, "now-24h": 86400, "now-2d": 172800, "now-7d": 604800 };

window.addEventListener("DOMContentLoaded", async () => {
  settings = await (await fetch("api/settings")).json();
  $("source").textContent = "preview from " + settings.prometheus;
  for (const b of settings.boards) $("board").append(element("option", { value: b.uid }, b.title.replace("Pitcrew / ", "")));
  $("board").value = asked.get("board") || settings.boards[0].uid;
  if ($("board").selectedIndex < 0) $("board").selectedIndex = 0;
  const own = async () => { $("range").value = asked.get("range") || ranges[(await (await fetch("api/boards/" + $("board").value)).json()).time.from] || 21600; };
  await own();
  $("board").onchange = async () => { asked.delete("range"); await own(); start(); };
  $("range").onchange = () => { asked.set("range", $("range").value); start(); };
  $("theme").onclick = () => { theme(!isDark()); start(); };
  start();
});
